-- Without contentless_delete: such a table marks what is deleted and keeps its words in the file, whatever secure-delete
-- says. This one takes words out when it is told which ones; it fills itself again when somebody searches.
DROP TABLE words;
DELETE FROM indexed;
CREATE VIRTUAL TABLE words USING fts5(text, content='', detail='none', tokenize="ascii tokenchars '_'");
INSERT INTO words(words, rank) VALUES('secure-delete', 1);

-- Here a row that is deleted is gone with the next vacuum; on SQLite this migration makes the index anew.
COMMENT ON TABLE holdfast.words IS 'a cache of the events: what is missing is made by the next search';

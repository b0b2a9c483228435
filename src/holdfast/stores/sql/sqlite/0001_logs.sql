CREATE TABLE logs(
    log INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused
    uid TEXT NOT NULL,
    origin TEXT NOT NULL,
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    id TEXT,                                -- NULL once deleted: the name is free again
    base INTEGER NOT NULL,
    ancestry BLOB,
    parent INTEGER,                         -- the log it was forked from
    created_at INTEGER NOT NULL,
    head INTEGER NOT NULL,
    hash BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    view BLOB NOT NULL,
    busy INTEGER NOT NULL,
    marks INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX log_by_name ON logs(tenant, kind, id) WHERE id IS NOT NULL;

CREATE TABLE events(
    event INTEGER PRIMARY KEY,              -- log * 2^32 + seq: one b-tree, each log in one piece
    at INTEGER NOT NULL,
    type TEXT NOT NULL,
    header BLOB,
    tokens INTEGER NOT NULL,
    body BLOB,
    tomb BLOB,
    hash BLOB NOT NULL,
    marked INTEGER
) STRICT;
CREATE INDEX event_by_mark ON events(event) WHERE marked IS NOT NULL;

CREATE TABLE names(
    log INTEGER NOT NULL,
    name BLOB NOT NULL,
    seq INTEGER NOT NULL,
    ref INTEGER,
    PRIMARY KEY(log, name, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions(
    log INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    user_id BLOB,
    app_name BLOB,
    status TEXT NOT NULL,
    title BLOB,
    metadata BLOB,
    work_dir BLOB
) STRICT;
CREATE INDEX session_by_tenant ON sessions(tenant, log) WHERE tenant <> '';  -- without tenants the table is in order
CREATE INDEX session_by_user ON sessions(tenant, user_id, log) WHERE user_id IS NOT NULL;
CREATE INDEX session_by_app ON sessions(tenant, app_name, log) WHERE app_name IS NOT NULL;

CREATE TABLE once(
    log INTEGER NOT NULL,
    key BLOB NOT NULL,
    digest BLOB NOT NULL,
    first INTEGER NOT NULL,
    last INTEGER NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY(log, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE leases(
    log INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    holder BLOB NOT NULL,
    boot TEXT NOT NULL,
    expires REAL NOT NULL                   -- on the clock of that boot
) STRICT;

CREATE TABLE snapshots(
    log INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    view BLOB NOT NULL,
    PRIMARY KEY(log, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE blobs(
    log INTEGER NOT NULL,
    digest TEXT NOT NULL,
    data BLOB NOT NULL,
    UNIQUE(log, digest)
) STRICT;

CREATE TABLE lineage(                       -- who must outlive whom: a log's parent, and every log it reads from
    ancestor INTEGER NOT NULL,
    log INTEGER NOT NULL,
    PRIMARY KEY(ancestor, log)
) STRICT, WITHOUT ROWID;

CREATE TABLE indexed(
    log INTEGER PRIMARY KEY,
    upto INTEGER NOT NULL
) STRICT;
CREATE VIRTUAL TABLE words USING fts5(
    text, content='', contentless_delete=1, detail='none', tokenize="ascii tokenchars '_'"
);
INSERT INTO words(words, rank) VALUES('secure-delete', 1);

-- The schema of a SQLite store. Times are microseconds since 1970, unless a comment names another clock.

CREATE TABLE logs(
    log INTEGER PRIMARY KEY AUTOINCREMENT,  -- log number, never reused
    uid TEXT NOT NULL,
    origin TEXT NOT NULL,
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    id TEXT,                                -- NULL after deletion, so that a new log can take the id
    base INTEGER NOT NULL,
    ancestry BLOB,
    parent INTEGER,                         -- log from which this log was forked
    created_at INTEGER NOT NULL,
    head INTEGER NOT NULL,
    hash BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    view BLOB NOT NULL,
    busy INTEGER NOT NULL,
    marks INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    key BLOB                                -- data key of the log, wrapped by the master key; NULL: not encrypted
) STRICT;
CREATE UNIQUE INDEX log_by_name ON logs(tenant, kind, id) WHERE id IS NOT NULL;

CREATE TABLE events(
    event INTEGER PRIMARY KEY,              -- log * 2^32 + seq: the events of a log are neighbours in one B-tree
    at INTEGER NOT NULL,
    type TEXT NOT NULL,
    header BLOB,
    tokens INTEGER NOT NULL,
    body BLOB,
    tombstone BLOB,                         -- after erasure: commitment to the body, and the parts that views need
    hash BLOB NOT NULL,
    changes_view INTEGER                    -- 1: the event changes the view; NULL: it does not
) STRICT;
CREATE INDEX event_changing_view ON events(event) WHERE changes_view IS NOT NULL;

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
CREATE INDEX session_by_tenant ON sessions(tenant, log) WHERE tenant <> '';  -- without tenants: the primary key
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
    expires REAL NOT NULL                   -- seconds on the monotonic clock of that boot
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

CREATE TABLE lineage(                       -- a log needs its ancestors: its parent and every log that it reads from
    ancestor INTEGER NOT NULL,
    log INTEGER NOT NULL,
    PRIMARY KEY(ancestor, log)
) STRICT, WITHOUT ROWID;

CREATE TABLE indexed(
    log INTEGER PRIMARY KEY,
    upto INTEGER NOT NULL
) STRICT;
-- Without contentless_delete: that option only marks a deleted row and keeps its words in the file, even with
-- secure-delete. This table removes words when the delete names them. It is a cache: the next search fills it again.
CREATE VIRTUAL TABLE words USING fts5(text, content='', detail='none', tokenize="ascii tokenchars '_'");
INSERT INTO words(words, rank) VALUES('secure-delete', 1);

CREATE TABLE master_key(                    -- fingerprint of the master key that wraps the data keys
    one INTEGER PRIMARY KEY CHECK (one = 1),
    master TEXT NOT NULL
) STRICT;

CREATE TABLE retention(                     -- only logs with a retention or a legal hold have a row
    log INTEGER PRIMARY KEY,
    ttl INTEGER,                            -- microseconds after the last activity; NULL: no end
    immutable INTEGER NOT NULL,
    held INTEGER NOT NULL,
    active INTEGER NOT NULL,                -- time of the last activity of an immutable log; never decreases
    due INTEGER                             -- time of the next sweep; NULL: not before the log changes
) STRICT;
CREATE INDEX retention_by_due ON retention(due) WHERE due IS NOT NULL;

CREATE TABLE erasures(                      -- legal erasures, which the triggers let through; rows are never removed
    log INTEGER NOT NULL,
    at INTEGER NOT NULL,
    whole INTEGER NOT NULL,                 -- 1: the whole log is erased; 0: only what repeats another log
    open INTEGER NOT NULL,                  -- 1 only inside the transaction that erases
    PRIMARY KEY(log, at)
) STRICT, WITHOUT ROWID;

-- The last signed head of each log. It outlives redactions and erasures, which change no hash.
CREATE TABLE signatures(
    log INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL,
    at INTEGER NOT NULL,
    key TEXT NOT NULL,                      -- fingerprint of the public key
    signature BLOB NOT NULL,
    anchored INTEGER NOT NULL               -- 0: the anchor has not taken it yet
) STRICT;

-- Immutable logs whose retention has not ended. The triggers below refuse changes that are made by hand, whatever the
-- table of erasures says: an open erasure allows to bury events and to drop bytes, never to rewrite, move or remove an
-- event. A person who removes the triggers can rewrite a log and its chain; only a signed head shows that.
CREATE VIEW locked AS
    SELECT k.log AS log FROM retention k
    WHERE k.immutable
      AND (k.ttl IS NULL OR k.active + k.ttl > CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER));

-- Logs whose whole content is erased inside this transaction: their retention ends with it.
CREATE VIEW emptied AS
    SELECT e.log AS log FROM erasures e
    WHERE e.open AND e.whole AND NOT EXISTS (
        SELECT 1 FROM events v
        WHERE v.event BETWEEN (e.log << 32) AND (e.log << 32 | 4294967295)
          AND v.body IS NOT NULL AND v.type <> 'session.erased');

CREATE TRIGGER events_no_delete BEFORE DELETE ON events
WHEN EXISTS (SELECT 1 FROM locked WHERE log = OLD.event >> 32)
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER events_no_update BEFORE UPDATE ON events
WHEN EXISTS (SELECT 1 FROM locked WHERE log IN (OLD.event >> 32, NEW.event >> 32))
    AND NOT (EXISTS (SELECT 1 FROM erasures e WHERE e.log = OLD.event >> 32 AND e.open)
             AND NEW.body IS NULL AND NEW.tombstone IS NOT NULL AND NEW.event = OLD.event AND NEW.at = OLD.at
             AND NEW.type = OLD.type AND NEW.header IS OLD.header AND NEW.tokens = OLD.tokens AND NEW.hash = OLD.hash
             AND NEW.changes_view IS OLD.changes_view
             AND (OLD.body IS NOT NULL OR substr(NEW.tombstone, 1, 32) = substr(OLD.tombstone, 1, 32)))
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER blobs_no_delete BEFORE DELETE ON blobs
WHEN EXISTS (SELECT 1 FROM locked WHERE log = OLD.log)
    AND NOT EXISTS (SELECT 1 FROM erasures e WHERE e.log = OLD.log AND e.open)
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER blobs_no_update BEFORE UPDATE ON blobs
WHEN EXISTS (SELECT 1 FROM locked WHERE log IN (OLD.log, NEW.log))
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER blobs_no_replace BEFORE INSERT ON blobs
WHEN EXISTS (SELECT 1 FROM blobs WHERE log = NEW.log AND digest = NEW.digest AND data <> NEW.data)
    AND EXISTS (SELECT 1 FROM locked WHERE log = NEW.log)
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER logs_no_delete BEFORE DELETE ON logs
WHEN EXISTS (SELECT 1 FROM locked WHERE log = OLD.log)
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER logs_no_update BEFORE UPDATE OF log, uid, origin, tenant, kind, id, key ON logs
WHEN (NEW.id IS NOT OLD.id OR NEW.log <> OLD.log OR NEW.uid <> OLD.uid OR NEW.origin <> OLD.origin
      OR NEW.tenant <> OLD.tenant OR NEW.kind <> OLD.kind OR (NEW.key IS NULL) <> (OLD.key IS NULL))
    AND EXISTS (SELECT 1 FROM locked l JOIN logs o ON o.log = l.log
                WHERE o.log IN (OLD.log, NEW.log) OR (o.tenant = NEW.tenant AND o.kind = NEW.kind AND o.id = NEW.id))
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER logs_no_replace BEFORE INSERT ON logs
WHEN EXISTS (SELECT 1 FROM locked l JOIN logs o ON o.log = l.log
             WHERE o.log = NEW.log OR (o.tenant = NEW.tenant AND o.kind = NEW.kind AND o.id = NEW.id))
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER retention_no_delete BEFORE DELETE ON retention
WHEN EXISTS (SELECT 1 FROM locked WHERE log = OLD.log)
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER retention_no_update BEFORE UPDATE ON retention
WHEN (NEW.log <> OLD.log OR NOT NEW.immutable OR NEW.active < OLD.active
      OR (NEW.ttl IS NOT NULL AND (OLD.ttl IS NULL OR NEW.ttl < OLD.ttl)))
    AND EXISTS (SELECT 1 FROM locked WHERE log IN (OLD.log, NEW.log))
    AND NOT (NEW.log = OLD.log AND EXISTS (SELECT 1 FROM emptied WHERE log = OLD.log))
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER retention_no_replace BEFORE INSERT ON retention
WHEN EXISTS (SELECT 1 FROM locked l JOIN retention o ON o.log = l.log WHERE o.log = NEW.log
             AND (NOT NEW.immutable OR NEW.active < o.active
                  OR (NEW.ttl IS NOT NULL AND (o.ttl IS NULL OR NEW.ttl < o.ttl))))
    AND NOT EXISTS (SELECT 1 FROM emptied WHERE log = NEW.log)
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER erasures_no_delete BEFORE DELETE ON erasures
BEGIN SELECT RAISE(ABORT, 'holdfast: a record of an erasure is never removed'); END;

CREATE TRIGGER erasures_no_update BEFORE UPDATE ON erasures
WHEN NEW.open OR NEW.log <> OLD.log OR NEW.at <> OLD.at OR NEW.whole <> OLD.whole
BEGIN SELECT RAISE(ABORT, 'holdfast: a record of an erasure is never changed'); END;

CREATE TRIGGER erasures_no_replace BEFORE INSERT ON erasures
WHEN EXISTS (SELECT 1 FROM erasures WHERE log = NEW.log AND at = NEW.at)
BEGIN SELECT RAISE(ABORT, 'holdfast: a record of an erasure is never changed'); END;

CREATE TABLE key_values(                    -- small values of the server: API keys, responses to repeated requests
    tenant TEXT NOT NULL,
    space TEXT NOT NULL,
    key BLOB NOT NULL,                      -- UTF-8, may contain NUL
    value BLOB NOT NULL,
    expires INTEGER,                        -- microseconds since 1970; an expired row counts as absent; NULL: never
    PRIMARY KEY(tenant, space, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX key_value_by_expiry ON key_values(expires) WHERE expires IS NOT NULL;

-- Logs with admitted runs that have not ended; derived from the views.
CREATE TABLE run_queue(
    log INTEGER PRIMARY KEY,
    since INTEGER NOT NULL
) STRICT;

-- What a tenant, or a user of it, has and has used today. Only those with a quota have a row.
CREATE TABLE usage(
    tenant TEXT NOT NULL,
    owner BLOB NOT NULL,                      -- user id; empty: the tenant
    sessions INTEGER NOT NULL,
    forks INTEGER NOT NULL,
    memories INTEGER NOT NULL,
    bytes INTEGER NOT NULL DEFAULT 0,            -- as measured, and reserved since
    measured_at INTEGER NOT NULL DEFAULT 0,
    day INTEGER NOT NULL DEFAULT 0,              -- days since 1970, UTC
    tokens INTEGER NOT NULL DEFAULT 0,           -- of that day
    cost INTEGER NOT NULL DEFAULT 0,             -- of that day, in millionths
    PRIMARY KEY(tenant, owner)
) STRICT, WITHOUT ROWID;

CREATE TABLE settled(                     -- usage of a session that is in the usage of a day
    log INTEGER PRIMARY KEY,
    usage BLOB NOT NULL
) STRICT;

CREATE TABLE sizes(                       -- bytes of a log at a head; a cache
    log INTEGER PRIMARY KEY,
    head INTEGER NOT NULL,
    bytes INTEGER NOT NULL
) STRICT;
CREATE INDEX log_deleted_by_tenant ON logs(tenant) WHERE id IS NULL;

ALTER TABLE logs ADD COLUMN key BLOB;       -- the log's own key, wrapped by the master key; NULL: not encrypted

CREATE TABLE vault(                         -- which master key the store's keys are wrapped by
    one INTEGER PRIMARY KEY CHECK (one = 1),
    master TEXT NOT NULL
) STRICT;

CREATE TABLE keeping(                       -- how long a log is kept; only logs with a retention or a hold have a row
    log INTEGER PRIMARY KEY,
    ttl INTEGER,                            -- microseconds after the last activity; NULL: for ever
    immutable INTEGER NOT NULL,
    held INTEGER NOT NULL,
    active INTEGER NOT NULL,                -- when an immutable log was last active; never goes back
    due INTEGER                             -- when the sweep looks at it; NULL: not before something changes
) STRICT;
CREATE INDEX keeping_by_due ON keeping(due) WHERE due IS NOT NULL;

CREATE TABLE erasures(                      -- legal erasures, the only way past the triggers below; never removed
    log INTEGER NOT NULL,
    at INTEGER NOT NULL,
    open INTEGER NOT NULL,                  -- 1 only inside the transaction that erases
    PRIMARY KEY(log, at)
) STRICT, WITHOUT ROWID;

-- Immutable logs whose time has not passed since their last activity. Whoever uses the database by hand meets the
-- triggers below; whoever removes the triggers is found out by the hash chain.
CREATE VIEW locked AS
    SELECT k.log AS log FROM keeping k
    WHERE k.immutable
      AND (k.ttl IS NULL OR k.active + k.ttl > CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER))
      AND NOT EXISTS (SELECT 1 FROM erasures e WHERE e.log = k.log AND e.open);

CREATE TRIGGER events_stay BEFORE DELETE ON events
WHEN EXISTS (SELECT 1 FROM locked WHERE log = OLD.event >> 32)
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER events_hold BEFORE UPDATE ON events
WHEN EXISTS (SELECT 1 FROM locked WHERE log IN (OLD.event >> 32, NEW.event >> 32))
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER blobs_stay BEFORE DELETE ON blobs
WHEN EXISTS (SELECT 1 FROM locked WHERE log = OLD.log)
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER blobs_hold BEFORE UPDATE ON blobs
WHEN EXISTS (SELECT 1 FROM locked WHERE log IN (OLD.log, NEW.log))
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER blobs_replace BEFORE INSERT ON blobs
WHEN EXISTS (SELECT 1 FROM blobs WHERE log = NEW.log AND digest = NEW.digest AND data <> NEW.data)
    AND EXISTS (SELECT 1 FROM locked WHERE log = NEW.log)
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER logs_stay BEFORE DELETE ON logs
WHEN EXISTS (SELECT 1 FROM locked WHERE log = OLD.log)
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER logs_hold BEFORE UPDATE OF log, uid, origin, tenant, kind, id, key ON logs
WHEN (NEW.id IS NOT OLD.id OR NEW.log <> OLD.log OR NEW.uid <> OLD.uid OR NEW.origin <> OLD.origin
      OR NEW.tenant <> OLD.tenant OR NEW.kind <> OLD.kind OR (NEW.key IS NULL) <> (OLD.key IS NULL))
    AND EXISTS (SELECT 1 FROM locked l JOIN logs o ON o.log = l.log
                WHERE o.log IN (OLD.log, NEW.log) OR (o.tenant = NEW.tenant AND o.kind = NEW.kind AND o.id = NEW.id))
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER logs_replace BEFORE INSERT ON logs
WHEN EXISTS (SELECT 1 FROM locked l JOIN logs o ON o.log = l.log
             WHERE o.log = NEW.log OR (o.tenant = NEW.tenant AND o.kind = NEW.kind AND o.id = NEW.id))
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER keeping_stays BEFORE DELETE ON keeping
WHEN EXISTS (SELECT 1 FROM locked WHERE log = OLD.log)
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER keeping_holds BEFORE UPDATE ON keeping
WHEN (NEW.log <> OLD.log OR NOT NEW.immutable OR NEW.active < OLD.active
      OR (NEW.ttl IS NOT NULL AND (OLD.ttl IS NULL OR NEW.ttl < OLD.ttl)))
    AND EXISTS (SELECT 1 FROM locked WHERE log IN (OLD.log, NEW.log))
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER keeping_replaces BEFORE INSERT ON keeping
WHEN EXISTS (SELECT 1 FROM locked l JOIN keeping o ON o.log = l.log WHERE o.log = NEW.log
             AND (NOT NEW.immutable OR NEW.active < o.active OR (NEW.ttl IS NOT NULL AND (o.ttl IS NULL OR NEW.ttl < o.ttl))))
BEGIN SELECT RAISE(ABORT, 'holdfast: this session is immutable'); END;

CREATE TRIGGER erasures_stay BEFORE DELETE ON erasures
BEGIN SELECT RAISE(ABORT, 'holdfast: a record of an erasure is never removed'); END;

CREATE TRIGGER erasures_hold BEFORE UPDATE ON erasures
WHEN NEW.open OR NEW.log <> OLD.log OR NEW.at <> OLD.at
BEGIN SELECT RAISE(ABORT, 'holdfast: a record of an erasure is never changed'); END;

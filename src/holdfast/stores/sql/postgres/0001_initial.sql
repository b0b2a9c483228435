-- The schema of a PostgreSQL store. Times are microseconds since 1970, unless the column is a TIMESTAMPTZ.

CREATE TABLE holdfast.logs(
    log BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- log number, never reused
    uid TEXT COLLATE "C" NOT NULL,
    origin TEXT NOT NULL,
    tenant TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C",                    -- NULL after deletion, so that a new log can take the id
    base BIGINT NOT NULL,
    ancestry BYTEA,
    parent BIGINT,                          -- log from which this log was forked
    created_at BIGINT NOT NULL,
    head BIGINT NOT NULL,
    hash BYTEA NOT NULL,
    epoch BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    view BYTEA NOT NULL,
    busy BOOLEAN NOT NULL,
    marks BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    key BYTEA                               -- data key of the log, wrapped by the master key; NULL: not encrypted
) WITH (fillfactor = 70);                   -- each append updates the head, in place if the page has room
CREATE UNIQUE INDEX log_by_name ON holdfast.logs(tenant, kind, id) WHERE id IS NOT NULL;

CREATE TABLE holdfast.events(
    log BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    at BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    changes_view BOOLEAN,                   -- true: the event changes the view; NULL: it does not
    type TEXT NOT NULL,
    header BYTEA,
    body BYTEA,
    tombstone BYTEA,                        -- after erasure: commitment to the body, and the parts that views need
    hash BYTEA NOT NULL,
    PRIMARY KEY(log, seq)
);
CREATE INDEX event_changing_view ON holdfast.events(log, seq) WHERE changes_view IS NOT NULL;

CREATE TABLE holdfast.names(
    log BIGINT NOT NULL,
    name BYTEA NOT NULL,
    seq BIGINT NOT NULL,
    ref BIGINT,
    PRIMARY KEY(log, name, seq)
);

CREATE TABLE holdfast.sessions(
    log BIGINT PRIMARY KEY,
    tenant TEXT COLLATE "C" NOT NULL,
    user_id BYTEA,
    app_name BYTEA,
    status TEXT NOT NULL,
    title BYTEA,
    metadata BYTEA,
    work_dir BYTEA
);
CREATE INDEX session_by_tenant ON holdfast.sessions(tenant, log);
CREATE INDEX session_by_user ON holdfast.sessions(tenant, user_id, log) WHERE user_id IS NOT NULL;
CREATE INDEX session_by_app ON holdfast.sessions(tenant, app_name, log) WHERE app_name IS NOT NULL;

CREATE TABLE holdfast.once(
    log BIGINT NOT NULL,
    key BYTEA NOT NULL,
    digest BYTEA NOT NULL,
    first BIGINT NOT NULL,
    last BIGINT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY(log, key)
);

CREATE TABLE holdfast.leases(
    log BIGINT PRIMARY KEY,
    epoch BIGINT NOT NULL,
    holder BYTEA NOT NULL,
    expires TIMESTAMPTZ NOT NULL
);

CREATE TABLE holdfast.snapshots(
    log BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    view BYTEA NOT NULL,
    PRIMARY KEY(log, seq)
);

CREATE TABLE holdfast.blobs(
    log BIGINT NOT NULL,
    digest TEXT COLLATE "C" NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY(log, digest)
);

CREATE TABLE holdfast.lineage(              -- a log needs its ancestors: its parent and every log that it reads from
    ancestor BIGINT NOT NULL,
    log BIGINT NOT NULL,
    PRIMARY KEY(ancestor, log)
);

CREATE TABLE holdfast.indexed(
    log BIGINT PRIMARY KEY,
    upto BIGINT NOT NULL
);
CREATE TABLE holdfast.words(                -- a cache: the next search adds the missing rows
    log BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    words TSVECTOR NOT NULL,
    PRIMARY KEY(log, seq)
);
CREATE INDEX words_by_word ON holdfast.words USING gin(words);

CREATE TABLE holdfast.master_key(           -- fingerprint of the master key that wraps the data keys
    one INTEGER PRIMARY KEY CHECK (one = 1),
    master TEXT NOT NULL
);

CREATE TABLE holdfast.retention(            -- only logs with a retention or a legal hold have a row
    log BIGINT PRIMARY KEY,
    ttl BIGINT,                             -- microseconds after the last activity; NULL: no end
    immutable BOOLEAN NOT NULL,
    held BOOLEAN NOT NULL,
    active BIGINT NOT NULL,                 -- time of the last activity of an immutable log; never decreases
    due BIGINT                              -- time of the next sweep; NULL: not before the log changes
);
CREATE INDEX retention_by_due ON holdfast.retention(due) WHERE due IS NOT NULL;

CREATE TABLE holdfast.erasures(             -- legal erasures, which the triggers let through; rows are never removed
    log BIGINT NOT NULL,
    at BIGINT NOT NULL,
    open BOOLEAN NOT NULL,                  -- true only inside the transaction that erases
    PRIMARY KEY(log, at)
);

-- Whether a log is immutable and its retention has not ended. The triggers below refuse changes that are made by hand.
-- Verification of the hash chain finds changes that were made after the triggers were removed.
CREATE FUNCTION holdfast.is_locked(BIGINT) RETURNS BOOLEAN LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM holdfast.retention k
        WHERE k.log = $1 AND k.immutable
          AND (k.ttl IS NULL OR k.active + k.ttl > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
          AND NOT EXISTS (SELECT 1 FROM holdfast.erasures e WHERE e.log = k.log AND e.open))
$$;

CREATE FUNCTION holdfast.refuse_if_locked() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF holdfast.is_locked(OLD.log) THEN
        RAISE EXCEPTION 'holdfast: this session is immutable' USING ERRCODE = 'restrict_violation';
    END IF;
    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
    RETURN NEW;
END
$$;

CREATE FUNCTION holdfast.refuse_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM holdfast.retention k WHERE k.immutable AND holdfast.is_locked(k.log)) THEN
        RAISE EXCEPTION 'holdfast: there are immutable sessions' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION holdfast.refuse_always() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'holdfast: a record of an erasure is never changed or removed' USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER events_no_change BEFORE DELETE OR UPDATE ON holdfast.events
    FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_if_locked();
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON holdfast.events
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_truncate();
CREATE TRIGGER blobs_no_change BEFORE DELETE OR UPDATE ON holdfast.blobs
    FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_if_locked();
CREATE TRIGGER blobs_no_truncate BEFORE TRUNCATE ON holdfast.blobs
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_truncate();
CREATE TRIGGER logs_no_delete BEFORE DELETE ON holdfast.logs
    FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_if_locked();
CREATE TRIGGER logs_no_update BEFORE UPDATE OF log, uid, origin, tenant, kind, id, key ON holdfast.logs
    FOR EACH ROW WHEN (NEW.id IS DISTINCT FROM OLD.id OR NEW.log <> OLD.log OR NEW.uid <> OLD.uid
        OR NEW.origin <> OLD.origin OR NEW.tenant <> OLD.tenant OR NEW.kind <> OLD.kind
        OR (NEW.key IS NULL) <> (OLD.key IS NULL))
    EXECUTE FUNCTION holdfast.refuse_if_locked();
CREATE TRIGGER logs_no_truncate BEFORE TRUNCATE ON holdfast.logs
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_truncate();
CREATE TRIGGER retention_no_delete BEFORE DELETE ON holdfast.retention
    FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_if_locked();
CREATE TRIGGER retention_no_update BEFORE UPDATE ON holdfast.retention
    FOR EACH ROW WHEN (NEW.log <> OLD.log OR NOT NEW.immutable OR NEW.active < OLD.active
        OR (NEW.ttl IS NOT NULL AND (OLD.ttl IS NULL OR NEW.ttl < OLD.ttl)))
    EXECUTE FUNCTION holdfast.refuse_if_locked();
CREATE TRIGGER retention_no_truncate BEFORE TRUNCATE ON holdfast.retention
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_truncate();
CREATE TRIGGER erasures_no_delete BEFORE DELETE ON holdfast.erasures
    FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_always();
CREATE TRIGGER erasures_no_update BEFORE UPDATE ON holdfast.erasures
    FOR EACH ROW WHEN (NEW.open OR NEW.log <> OLD.log OR NEW.at <> OLD.at) EXECUTE FUNCTION holdfast.refuse_always();
CREATE TRIGGER erasures_no_truncate BEFORE TRUNCATE ON holdfast.erasures
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_always();

CREATE TABLE holdfast.key_values(           -- small values of the server: API keys, responses to repeated requests
    tenant TEXT COLLATE "C" NOT NULL,
    space TEXT COLLATE "C" NOT NULL,
    key BYTEA NOT NULL,                     -- UTF-8, may contain NUL
    value BYTEA NOT NULL,
    expires BIGINT,                         -- microseconds since 1970; an expired row counts as absent; NULL: never
    mark BYTEA NOT NULL,                    -- id of the writing call: after a lost answer, a retry knows its write
    PRIMARY KEY(tenant, space, key)
);
CREATE INDEX key_value_by_expiry ON holdfast.key_values(expires) WHERE expires IS NOT NULL;

-- Logs with admitted runs that have not ended; derived from the views.
CREATE TABLE holdfast.run_queue(
    log BIGINT PRIMARY KEY,
    since BIGINT NOT NULL
);

-- What a tenant, or a user of it, has and has used today. Only those with a quota have a row.
CREATE TABLE holdfast.usage(
    tenant TEXT COLLATE "C" NOT NULL,
    owner BYTEA NOT NULL,                      -- user id; empty: the tenant
    sessions BIGINT NOT NULL,
    forks BIGINT NOT NULL,
    memories BIGINT NOT NULL,
    bytes BIGINT NOT NULL DEFAULT 0,            -- as measured, and reserved since
    measured_at BIGINT NOT NULL DEFAULT 0,
    day BIGINT NOT NULL DEFAULT 0,              -- days since 1970, UTC
    tokens BIGINT NOT NULL DEFAULT 0,           -- of that day
    cost BIGINT NOT NULL DEFAULT 0,             -- of that day, in millionths
    PRIMARY KEY(tenant, owner)
);

CREATE TABLE holdfast.settled(                     -- usage of a session that is in the usage of a day
    log BIGINT PRIMARY KEY,
    usage BYTEA NOT NULL
);

CREATE TABLE holdfast.sizes(                       -- bytes of a log at a head; a cache
    log BIGINT PRIMARY KEY,
    head BIGINT NOT NULL,
    bytes BIGINT NOT NULL
);
CREATE INDEX log_deleted_by_tenant ON holdfast.logs(tenant) WHERE id IS NULL;

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
    whole BOOLEAN NOT NULL,                 -- true: the whole log is erased; false: only what repeats another log
    open BOOLEAN NOT NULL,                  -- true only inside the transaction that erases
    PRIMARY KEY(log, at)
);

-- The last signed head of each log. It outlives redactions and erasures, which change no hash.
CREATE TABLE holdfast.signatures(
    log BIGINT PRIMARY KEY,
    seq BIGINT NOT NULL,
    hash BYTEA NOT NULL,
    at BIGINT NOT NULL,
    key TEXT NOT NULL,                      -- fingerprint of the public key
    signature BYTEA NOT NULL,
    anchored BOOLEAN NOT NULL               -- false: the anchor has not taken it yet
);

-- Whether a log is immutable and its retention has not ended. The triggers below refuse changes that are made by hand,
-- whatever the table of erasures says: an open erasure allows to bury events and to drop bytes, never to rewrite, move
-- or remove an event. A person who removes the triggers can rewrite a log and its chain; only a signed head shows that.
CREATE FUNCTION holdfast.is_locked(BIGINT) RETURNS BOOLEAN LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM holdfast.retention k
        WHERE k.log = $1 AND k.immutable
          AND (k.ttl IS NULL OR k.active + k.ttl > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))
$$;

CREATE FUNCTION holdfast.is_being_erased(BIGINT) RETURNS BOOLEAN LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT 1 FROM holdfast.erasures e WHERE e.log = $1 AND e.open)
$$;

-- Whether the whole content of a log is erased inside this transaction: its retention ends with it.
CREATE FUNCTION holdfast.is_emptied(BIGINT) RETURNS BOOLEAN LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT 1 FROM holdfast.erasures e WHERE e.log = $1 AND e.open AND e.whole)
        AND NOT EXISTS (
            SELECT 1 FROM holdfast.events v WHERE v.log = $1 AND v.body IS NOT NULL AND v.type <> 'session.erased')
$$;

CREATE FUNCTION holdfast.refuse_rewriting() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF holdfast.is_locked(OLD.log) AND NOT (
        holdfast.is_being_erased(OLD.log)
        AND NEW.body IS NULL AND NEW.tombstone IS NOT NULL AND NEW.log = OLD.log AND NEW.seq = OLD.seq
        AND NEW.at = OLD.at AND NEW.type = OLD.type AND NEW.header IS NOT DISTINCT FROM OLD.header
        AND NEW.tokens = OLD.tokens AND NEW.hash = OLD.hash
        AND NEW.changes_view IS NOT DISTINCT FROM OLD.changes_view
        AND (OLD.body IS NOT NULL OR substr(NEW.tombstone, 1, 32) = substr(OLD.tombstone, 1, 32))
    ) THEN
        RAISE EXCEPTION 'holdfast: this session is immutable' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$;

CREATE FUNCTION holdfast.refuse_dropping_bytes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF holdfast.is_locked(OLD.log) AND NOT holdfast.is_being_erased(OLD.log) THEN
        RAISE EXCEPTION 'holdfast: this session is immutable' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN OLD;
END
$$;

CREATE FUNCTION holdfast.refuse_weaker_retention() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF holdfast.is_locked(OLD.log) AND NOT (NEW.log = OLD.log AND holdfast.is_emptied(OLD.log)) THEN
        RAISE EXCEPTION 'holdfast: this session is immutable' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NEW;
END
$$;

-- At the end of its transaction, an erasure is closed and the log has the event that records it. A deleted log records
-- nothing any more: the session that still reads from it does.
CREATE FUNCTION holdfast.refuse_unrecorded_erasure() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF holdfast.is_being_erased(NEW.log)
        OR EXISTS (SELECT 1 FROM holdfast.retention k WHERE k.log = NEW.log)
        AND EXISTS (SELECT 1 FROM holdfast.logs l WHERE l.log = NEW.log AND l.id IS NOT NULL)
        AND NOT EXISTS (
            SELECT 1 FROM holdfast.events v
            WHERE v.log = NEW.log AND (v.type = 'session.erased' OR v.type = 'event.redacted' AND NOT NEW.whole)) THEN
        RAISE EXCEPTION 'holdfast: an erasure needs the event that records it' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
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

CREATE TRIGGER events_no_delete BEFORE DELETE ON holdfast.events
    FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_if_locked();
CREATE TRIGGER events_no_update BEFORE UPDATE ON holdfast.events
    FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_rewriting();
CREATE TRIGGER events_no_truncate BEFORE TRUNCATE ON holdfast.events
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_truncate();
CREATE TRIGGER blobs_no_delete BEFORE DELETE ON holdfast.blobs
    FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_dropping_bytes();
CREATE TRIGGER blobs_no_update BEFORE UPDATE ON holdfast.blobs
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
    EXECUTE FUNCTION holdfast.refuse_weaker_retention();
CREATE TRIGGER retention_no_truncate BEFORE TRUNCATE ON holdfast.retention
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.refuse_truncate();
CREATE TRIGGER erasures_no_delete BEFORE DELETE ON holdfast.erasures
    FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_always();
CREATE TRIGGER erasures_no_update BEFORE UPDATE ON holdfast.erasures
    FOR EACH ROW WHEN (NEW.open OR NEW.log <> OLD.log OR NEW.at <> OLD.at OR NEW.whole <> OLD.whole)
    EXECUTE FUNCTION holdfast.refuse_always();
CREATE CONSTRAINT TRIGGER erasures_are_recorded AFTER INSERT ON holdfast.erasures
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_unrecorded_erasure();
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
-- The second wall between tenants: see postgres_tenants.py. FORCE, because the store is the owner of its tables. Rows of
-- the other tables are found by the number of a log, which only these tables give.
CREATE FUNCTION holdfast.is_visible(TEXT) RETURNS BOOLEAN LANGUAGE sql STABLE AS $$
    SELECT current_setting('holdfast.tenant', true) IN ('tenant:' || $1, 'every')
$$;
ALTER TABLE holdfast.logs ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE holdfast.sessions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
ALTER TABLE holdfast.key_values ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON holdfast.logs USING (holdfast.is_visible(tenant));
CREATE POLICY tenant ON holdfast.sessions USING (holdfast.is_visible(tenant));
CREATE POLICY tenant ON holdfast.key_values USING (holdfast.is_visible(tenant));

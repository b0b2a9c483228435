ALTER TABLE holdfast.logs ADD COLUMN key BYTEA;           -- the log's own key, wrapped by the master key

CREATE TABLE holdfast.vault(                              -- which master key the store's keys are wrapped by
    one INTEGER PRIMARY KEY CHECK (one = 1),
    master TEXT NOT NULL
);

CREATE TABLE holdfast.keeping(                            -- how long a log is kept; only logs with a retention or a hold
    log BIGINT PRIMARY KEY,
    ttl BIGINT,                                           -- microseconds after the last activity; NULL: for ever
    immutable BOOLEAN NOT NULL,
    held BOOLEAN NOT NULL,
    active BIGINT NOT NULL,                               -- when an immutable log was last active; never goes back
    due BIGINT                                            -- when the sweep looks at it; NULL: not before something changes
);
CREATE INDEX keeping_by_due ON holdfast.keeping(due) WHERE due IS NOT NULL;

CREATE TABLE holdfast.erasures(                           -- legal erasures, the only way past the triggers; never removed
    log BIGINT NOT NULL,
    at BIGINT NOT NULL,
    open BOOLEAN NOT NULL,                                -- true only inside the transaction that erases
    PRIMARY KEY(log, at)
);

-- Whether a log is immutable and its time has not passed since its last activity. Whoever uses the database by hand meets the triggers below;
-- whoever removes the triggers is found out by the hash chain.
CREATE FUNCTION holdfast.is_locked(BIGINT) RETURNS BOOLEAN LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM holdfast.keeping k
        WHERE k.log = $1 AND k.immutable
          AND (k.ttl IS NULL OR k.active + k.ttl > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint)
          AND NOT EXISTS (SELECT 1 FROM holdfast.erasures e WHERE e.log = k.log AND e.open))
$$;

CREATE FUNCTION holdfast.stay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF holdfast.is_locked(OLD.log) THEN
        RAISE EXCEPTION 'holdfast: this session is immutable' USING ERRCODE = 'restrict_violation';
    END IF;
    IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
    RETURN NEW;
END
$$;

CREATE FUNCTION holdfast.stay_whole() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM holdfast.keeping k WHERE k.immutable AND holdfast.is_locked(k.log)) THEN
        RAISE EXCEPTION 'holdfast: there are immutable sessions' USING ERRCODE = 'restrict_violation';
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION holdfast.never() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'holdfast: a record of an erasure is never changed or removed' USING ERRCODE = 'restrict_violation';
END
$$;

CREATE TRIGGER events_stay BEFORE DELETE OR UPDATE ON holdfast.events
    FOR EACH ROW EXECUTE FUNCTION holdfast.stay();
CREATE TRIGGER events_whole BEFORE TRUNCATE ON holdfast.events
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.stay_whole();
CREATE TRIGGER blobs_stay BEFORE DELETE OR UPDATE ON holdfast.blobs
    FOR EACH ROW EXECUTE FUNCTION holdfast.stay();
CREATE TRIGGER blobs_whole BEFORE TRUNCATE ON holdfast.blobs
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.stay_whole();
CREATE TRIGGER logs_stay BEFORE DELETE ON holdfast.logs
    FOR EACH ROW EXECUTE FUNCTION holdfast.stay();
CREATE TRIGGER logs_hold BEFORE UPDATE OF log, uid, origin, tenant, kind, id, key ON holdfast.logs
    FOR EACH ROW WHEN (NEW.id IS DISTINCT FROM OLD.id OR NEW.log <> OLD.log OR NEW.uid <> OLD.uid
        OR NEW.origin <> OLD.origin OR NEW.tenant <> OLD.tenant OR NEW.kind <> OLD.kind
        OR (NEW.key IS NULL) <> (OLD.key IS NULL))
    EXECUTE FUNCTION holdfast.stay();
CREATE TRIGGER logs_whole BEFORE TRUNCATE ON holdfast.logs
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.stay_whole();
CREATE TRIGGER keeping_stays BEFORE DELETE ON holdfast.keeping
    FOR EACH ROW EXECUTE FUNCTION holdfast.stay();
CREATE TRIGGER keeping_holds BEFORE UPDATE ON holdfast.keeping
    FOR EACH ROW WHEN (NEW.log <> OLD.log OR NOT NEW.immutable OR NEW.active < OLD.active
        OR (NEW.ttl IS NOT NULL AND (OLD.ttl IS NULL OR NEW.ttl < OLD.ttl)))
    EXECUTE FUNCTION holdfast.stay();
CREATE TRIGGER keeping_whole BEFORE TRUNCATE ON holdfast.keeping
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.stay_whole();
CREATE TRIGGER erasures_stay BEFORE DELETE ON holdfast.erasures
    FOR EACH ROW EXECUTE FUNCTION holdfast.never();
CREATE TRIGGER erasures_hold BEFORE UPDATE ON holdfast.erasures
    FOR EACH ROW WHEN (NEW.open OR NEW.log <> OLD.log OR NEW.at <> OLD.at) EXECUTE FUNCTION holdfast.never();
CREATE TRIGGER erasures_whole BEFORE TRUNCATE ON holdfast.erasures
    FOR EACH STATEMENT EXECUTE FUNCTION holdfast.never();

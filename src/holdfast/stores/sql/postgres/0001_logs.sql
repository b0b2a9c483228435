CREATE TABLE holdfast.logs(
    log BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,  -- never reused
    uid TEXT COLLATE "C" NOT NULL,
    origin TEXT NOT NULL,
    tenant TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    id TEXT COLLATE "C",                                  -- NULL once deleted: the name is free again
    base BIGINT NOT NULL,
    ancestry BYTEA,
    parent BIGINT,                                        -- the log it was forked from
    created_at BIGINT NOT NULL,
    head BIGINT NOT NULL,
    hash BYTEA NOT NULL,
    epoch BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    view BYTEA NOT NULL,
    busy BOOLEAN NOT NULL,
    marks BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
) WITH (fillfactor = 70);                                 -- the head moves with every append: leave room to do so in place
CREATE UNIQUE INDEX log_by_name ON holdfast.logs(tenant, kind, id) WHERE id IS NOT NULL;

CREATE TABLE holdfast.events(
    log BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    at BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    marked BOOLEAN,
    type TEXT NOT NULL,
    header BYTEA,
    body BYTEA,
    tomb BYTEA,
    hash BYTEA NOT NULL,
    PRIMARY KEY(log, seq)
);
CREATE INDEX event_by_mark ON holdfast.events(log, seq) WHERE marked IS NOT NULL;

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

CREATE TABLE holdfast.lineage(                            -- who must outlive whom: a log's parent, and every log it reads from
    ancestor BIGINT NOT NULL,
    log BIGINT NOT NULL,
    PRIMARY KEY(ancestor, log)
);

CREATE TABLE holdfast.indexed(
    log BIGINT PRIMARY KEY,
    upto BIGINT NOT NULL
);
CREATE TABLE holdfast.words(
    log BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    words TSVECTOR NOT NULL,
    PRIMARY KEY(log, seq)
);
CREATE INDEX words_by_word ON holdfast.words USING gin(words);

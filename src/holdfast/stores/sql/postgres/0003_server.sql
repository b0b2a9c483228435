CREATE TABLE holdfast.slips(                              -- small values of the server under a key: API keys, answers to repeated requests
    tenant TEXT COLLATE "C" NOT NULL,
    space TEXT COLLATE "C" NOT NULL,
    key BYTEA NOT NULL,                                   -- UTF-8, which may hold NUL
    value BYTEA NOT NULL,
    expires BIGINT,                                       -- microseconds since 1970, from then on it counts as absent; NULL: never
    mark BYTEA NOT NULL,                                  -- which call wrote it: so it knows its own work if the answer gets lost
    PRIMARY KEY(tenant, space, key)
);
CREATE INDEX slip_by_expiry ON holdfast.slips(expires) WHERE expires IS NOT NULL;

-- logs with admitted runs that are not over; a fold of their views
CREATE TABLE holdfast.work(
    log BIGINT PRIMARY KEY,
    since BIGINT NOT NULL
);

CREATE TABLE slips(                         -- small values of the server under a key: API keys, answers to repeated requests
    tenant TEXT NOT NULL,
    space TEXT NOT NULL,
    key BLOB NOT NULL,                      -- UTF-8, which may hold NUL
    value BLOB NOT NULL,
    expires INTEGER,                        -- microseconds since 1970, from then on it counts as absent; NULL: never
    PRIMARY KEY(tenant, space, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX slip_by_expiry ON slips(expires) WHERE expires IS NOT NULL;

-- logs with admitted runs that are not over; a fold of their views
CREATE TABLE work(
    log INTEGER PRIMARY KEY,
    since INTEGER NOT NULL
) STRICT;

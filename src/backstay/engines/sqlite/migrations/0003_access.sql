-- Access: keys of the HTTP API, who changed what, and what was counted before the minutes that are kept.

CREATE TABLE api_key (
    key_id      TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    secret_hash TEXT NOT NULL,
    scopes      TEXT NOT NULL, -- JSON arrays
    queues      TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    created_by  TEXT,
    expires_at  INTEGER,
    revoked_at  INTEGER,
    revoked_by  TEXT,
    of          TEXT -- a session: the key it was opened with
) STRICT, WITHOUT ROWID;

-- By id, which is by time.
CREATE TABLE audit (
    entry_id TEXT PRIMARY KEY,
    at       INTEGER NOT NULL,
    by       TEXT NOT NULL,
    via      TEXT NOT NULL,
    action   TEXT NOT NULL,
    target   TEXT NOT NULL,
    before   TEXT,
    after    TEXT,
    outcome  TEXT,
    remote   TEXT
) STRICT, WITHOUT ROWID;

-- Sums over all minutes before meta's `summed_until`; those from there on are in `counter` alone.
CREATE TABLE counter_sum (
    job_type      TEXT NOT NULL,
    queue         TEXT NOT NULL,
    outcome       TEXT NOT NULL,
    bucket        INTEGER NOT NULL,
    count         INTEGER NOT NULL,
    ran_micros    INTEGER NOT NULL,
    waited_micros INTEGER NOT NULL,
    PRIMARY KEY (job_type, queue, outcome, bucket)
) STRICT, WITHOUT ROWID;

-- Access: keys of the HTTP API, who changed what, and what was counted before the minutes that are kept.

CREATE TABLE backstay.api_key (
    key_id      text COLLATE "C" PRIMARY KEY,
    name        text NOT NULL,
    secret_hash text NOT NULL,
    scopes      text NOT NULL, -- JSON arrays
    queues      text NOT NULL,
    created_at  bigint NOT NULL,
    created_by  text,
    expires_at  bigint,
    revoked_at  bigint,
    revoked_by  text,
    of          text -- a session: the key it was opened with
);

-- By id, which is by time.
CREATE TABLE backstay.audit (
    entry_id text COLLATE "C" PRIMARY KEY,
    at       bigint NOT NULL,
    by       text NOT NULL,
    via      text NOT NULL,
    action   text NOT NULL,
    target   text NOT NULL,
    before   text,
    after    text,
    outcome  text,
    remote   text
);

-- Sums over all minutes before `summed`; those from there on are in `counter` alone.
CREATE TABLE backstay.counter_sum (
    job_type      text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    outcome       text COLLATE "C" NOT NULL,
    bucket        integer NOT NULL,
    count         bigint NOT NULL,
    ran_micros    bigint NOT NULL,
    waited_micros bigint NOT NULL,
    PRIMARY KEY (job_type, queue, outcome, bucket)
);
CREATE TABLE backstay.summed (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    until    bigint NOT NULL
);

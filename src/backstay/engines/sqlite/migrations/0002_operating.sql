-- Operating: rates and turns, queues, schedules, counters, the archive.

-- A bucket for each key and rate: under one key, two types with different rates do not draw from the same.
CREATE TABLE rate (
    rate_key    TEXT NOT NULL,
    rate_count  INTEGER NOT NULL,
    rate_micros INTEGER NOT NULL,
    full_at     INTEGER NOT NULL, -- when the bucket would be full again
    wanted      INTEGER NOT NULL DEFAULT 1, -- the cost of the job that waits first: with less, nothing starts
    due_at      INTEGER,          -- when to look at its parked jobs again; set for every one that has some
    set_at      INTEGER NOT NULL, -- what the clock said when this was written
    PRIMARY KEY (rate_key, rate_count, rate_micros)
) STRICT, WITHOUT ROWID;
CREATE INDEX rate_due ON rate (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX rate_set ON rate (set_at);
CREATE INDEX rate_full ON rate (full_at) WHERE due_at IS NULL;

-- Turns: how far each fairness key has come, and how far the lane has. A key behind its lane has no row.
CREATE TABLE fair_lane (
    queue    TEXT NOT NULL,
    job_type TEXT NOT NULL,
    position INTEGER NOT NULL,
    after_key TEXT NOT NULL DEFAULT '', -- where the next look at more keys than one claim compares begins
    PRIMARY KEY (queue, job_type)
) STRICT, WITHOUT ROWID;
CREATE TABLE fair_key (
    queue        TEXT NOT NULL,
    job_type     TEXT NOT NULL,
    fairness_key TEXT NOT NULL, -- '' stands for jobs without one
    position     INTEGER NOT NULL,
    turn_at      INTEGER NOT NULL, -- when it last had its turn
    PRIMARY KEY (queue, job_type, fairness_key)
) STRICT, WITHOUT ROWID;

CREATE TABLE queue (
    name         TEXT PRIMARY KEY,
    paused_at    INTEGER,
    paused_by    TEXT,
    pause_reason TEXT,
    paused_until INTEGER,
    max_pending  INTEGER CHECK (max_pending >= 1)
) STRICT, WITHOUT ROWID;

-- What was set at run time for a type or a key.
CREATE TABLE run_limit (
    of           TEXT NOT NULL CHECK (of = 'type' OR of = 'key'),
    name         TEXT NOT NULL,
    concurrency  INTEGER CHECK (concurrency >= 1),
    rate_count   INTEGER,
    rate_micros  INTEGER,
    set_at       INTEGER,
    set_by       TEXT,
    paused_at    INTEGER,
    paused_by    TEXT,
    pause_reason TEXT,
    paused_until INTEGER,
    PRIMARY KEY (of, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE schedule (
    name        TEXT PRIMARY KEY,
    cron        TEXT NOT NULL,
    timezone    TEXT NOT NULL,
    missed      TEXT NOT NULL CHECK (missed = 'skip' OR missed = 'one' OR missed = 'all'),
    job_type    TEXT NOT NULL,
    template    TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    next_at     INTEGER NOT NULL,
    version     INTEGER NOT NULL CHECK (version >= 1),
    paused_at   INTEGER,
    paused_by   TEXT,
    last_at     INTEGER,
    last_job_id TEXT,
    overlap     TEXT NOT NULL CHECK (overlap = 'queue' OR overlap = 'skip' OR overlap = 'replace'),
    jitter_micros INTEGER NOT NULL,
    starts_at   INTEGER,
    ends_at     INTEGER,
    declared_by TEXT,
    skipped     INTEGER NOT NULL,
    skipped_at  INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX schedule_next ON schedule (next_at, name) WHERE paused_at IS NULL;

-- Which code of an app declares its schedules: see core/declarations.py.
CREATE TABLE declaration (
    origin  TEXT PRIMARY KEY,
    version INTEGER NOT NULL,
    details TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE counter (
    minute        INTEGER NOT NULL,
    job_type      TEXT NOT NULL,
    queue         TEXT NOT NULL,
    priority      INTEGER NOT NULL,
    outcome       TEXT NOT NULL,
    bucket        INTEGER NOT NULL, -- of how long attempts ran and waited; 0 for what was no attempt
    count         INTEGER NOT NULL,
    ran_micros    INTEGER NOT NULL,
    waited_micros INTEGER NOT NULL,
    PRIMARY KEY (minute, job_type, queue, priority, outcome, bucket)
) STRICT, WITHOUT ROWID;

-- What is left of a job after its retention.
CREATE TABLE archive (
    job_id      TEXT PRIMARY KEY,
    archived_at INTEGER NOT NULL,
    status      TEXT NOT NULL CHECK (status = 'completed' OR status = 'failed' OR status = 'cancelled'),
    has_files   INTEGER NOT NULL CHECK (has_files = 0 OR has_files = 1), -- not removed yet
    details     TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX archive_age ON archive (archived_at);
CREATE INDEX archive_files ON archive (job_id) WHERE has_files = 1;

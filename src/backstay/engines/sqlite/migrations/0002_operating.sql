-- Operating: queues, schedules, counters, the archive, rates and turns.

ALTER TABLE job ADD COLUMN payload_version INTEGER NOT NULL DEFAULT 1 CHECK (payload_version >= 1);
ALTER TABLE job ADD COLUMN fairness_key TEXT;
ALTER TABLE job ADD COLUMN fairness_weight INTEGER NOT NULL DEFAULT 1 CHECK (fairness_weight >= 1);
ALTER TABLE job ADD COLUMN rate_key TEXT;
ALTER TABLE job ADD COLUMN rate_count INTEGER;
ALTER TABLE job ADD COLUMN rate_micros INTEGER;
ALTER TABLE job ADD COLUMN schedule TEXT;
ALTER TABLE job ADD COLUMN tick_at INTEGER;
ALTER TABLE job ADD COLUMN traceparent TEXT;
-- A parked job waits for its rate key where this is set, and for its concurrency key where it is not.
ALTER TABLE job ADD COLUMN rate_parked INTEGER NOT NULL DEFAULT 0 CHECK (rate_parked = 0 OR (rate_parked = 1 AND parked = 1));

-- Whether the child only joined an identical job: then it may run without it.
ALTER TABLE edge ADD COLUMN joined INTEGER NOT NULL DEFAULT 0 CHECK (joined = 0 OR joined = 1);

-- Announced anew, with a version and a retention, by the next app that opens the file.
DELETE FROM job_type;

-- claim: two indexes, of which each pending job is in one. The version comes last, to be read without the row.
DROP INDEX job_ready;
CREATE INDEX job_ready ON job (queue, job_type, parked, priority DESC, scheduled_for, job_id, payload_version)
    WHERE status = 'pending' AND fairness_key IS NULL;
CREATE INDEX job_fair ON job (queue, job_type, parked, priority DESC, fairness_key, scheduled_for, job_id, payload_version)
    WHERE status = 'pending' AND fairness_key IS NOT NULL;
-- keys: holders, which jobs are in sight, and which are parked; versions apart, because not every worker reads all
DROP INDEX job_key;
CREATE INDEX job_key ON job (concurrency_key, status, queue, job_type, payload_version, parked, priority DESC,
        scheduled_for, job_id)
    WHERE concurrency_key IS NOT NULL;
DROP INDEX job_parked;
CREATE INDEX job_parked ON job (concurrency_key, queue, job_type, payload_version, priority DESC, scheduled_for, job_id)
    WHERE parked = 1 AND rate_parked = 0 AND concurrency_key IS NOT NULL;
CREATE INDEX job_rate ON job (rate_key, rate_count, rate_micros, queue, job_type, payload_version,
        priority DESC, scheduled_for, job_id)
    WHERE status = 'pending' AND rate_key IS NOT NULL AND parked = 0;
CREATE INDEX job_rate_parked ON job (rate_key, rate_count, rate_micros, queue, job_type, payload_version,
        priority DESC, scheduled_for, job_id)
    WHERE rate_parked = 1;

-- A bucket for each key and rate: under one key, two types with different rates do not draw from the same.
CREATE TABLE rate (
    rate_key    TEXT NOT NULL,
    rate_count  INTEGER NOT NULL,
    rate_micros INTEGER NOT NULL,
    full_at     INTEGER NOT NULL, -- when the bucket would be full again
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
    max_pending  INTEGER CHECK (max_pending >= 1)
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
    last_job_id TEXT
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
-- guards go with the archive rows that they stand on
CREATE INDEX dedup_job ON dedup (job_id);

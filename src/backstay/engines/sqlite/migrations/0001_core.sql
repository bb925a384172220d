-- The core: jobs, their edges, guards and steps; workers and types.
-- Times are microseconds since the epoch, UTC. JSON is text. A job's rowid is the order of arrival.

CREATE TABLE job (
    seq                   INTEGER PRIMARY KEY,
    job_id                TEXT NOT NULL UNIQUE,
    job_type              TEXT NOT NULL,
    queue                 TEXT NOT NULL,
    -- Chains of OR, the common states first: SQLite builds a table for a longer IN list anew for every row it checks.
    status                TEXT NOT NULL CHECK (
        status = 'pending' OR status = 'processing' OR status = 'completed' OR status = 'scheduled'
        OR status = 'retrying' OR status = 'waiting' OR status = 'failed' OR status = 'cancelled'),
    priority              INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 100),
    scheduled_for         INTEGER NOT NULL,
    parked                INTEGER NOT NULL DEFAULT 0 CHECK (parked IN (0, 1)),
    attempt               INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    version               INTEGER NOT NULL DEFAULT 1 CHECK (version >= 1),
    failures              INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    snoozes               INTEGER NOT NULL DEFAULT 0,
    give_backs            INTEGER NOT NULL DEFAULT 0,
    max_attempts          INTEGER NOT NULL CHECK (max_attempts >= 1),
    timeout_micros        INTEGER NOT NULL CHECK (timeout_micros > 0),
    claim_token           TEXT,
    worker_id             TEXT,
    worker_version        TEXT,
    lease_expires_at      INTEGER,
    created_at            INTEGER NOT NULL,
    updated_at            INTEGER NOT NULL,
    started_at            INTEGER,
    completed_at          INTEGER,
    progress              REAL NOT NULL DEFAULT 0 CHECK (progress BETWEEN 0 AND 1),
    stage                 TEXT NOT NULL DEFAULT '',
    subject               TEXT,
    tags                  TEXT,
    created_by            TEXT,
    dedup_key             TEXT,
    content_hash          TEXT,
    reused_from           TEXT,
    joins                 TEXT,
    concurrency_key       TEXT,
    concurrency_limit     INTEGER,
    parent_job_id         TEXT,
    root_job_id           TEXT,
    job_stage             TEXT,
    on_dependency_failure TEXT NOT NULL DEFAULT 'cancel' CHECK (on_dependency_failure IN ('cancel', 'fail')),
    awaited               INTEGER NOT NULL DEFAULT 0, -- whether a job waits on this one, or did
    unmet_dependencies    INTEGER NOT NULL DEFAULT 0 CHECK (unmet_dependencies >= 0),
    last_error            TEXT,
    errors                TEXT,
    logs                  TEXT,
    log_location          TEXT,
    metrics               TEXT,
    artifacts             TEXT,
    history               TEXT NOT NULL,
    result                TEXT,
    result_artifact       TEXT,
    payload               TEXT NOT NULL,
    -- The lifecycle, mirrored: what a state implies.
    CHECK ((status = 'processing') = (lease_expires_at IS NOT NULL)),
    CHECK (status <> 'processing' OR (worker_id IS NOT NULL AND claim_token IS NOT NULL AND attempt >= 1)),
    CHECK ((status = 'completed' OR status = 'failed' OR status = 'cancelled') = (completed_at IS NOT NULL)),
    CHECK (status = 'completed' OR (result IS NULL AND result_artifact IS NULL)),
    CHECK (status <> 'retrying' OR failures < max_attempts),
    CHECK (parked = 0 OR status = 'pending')
) STRICT;

-- claim: starts with queue and type, so that foreign types are never walked past.
CREATE INDEX job_ready ON job (queue, job_type, parked, priority DESC, scheduled_for, job_id) WHERE status = 'pending';
-- promote
CREATE INDEX job_due ON job (scheduled_for) WHERE status IN ('scheduled', 'retrying');
-- expired
CREATE INDEX job_lease ON job (lease_expires_at) WHERE status = 'processing';
-- find by state, for the states that are few; completed jobs are found by order of arrival, those that are pending or
-- processing through the indexes above, so that the common path writes neither of these two
CREATE INDEX job_later ON job (status) WHERE status > 'processing'; -- retrying, scheduled, waiting
CREATE INDEX job_ended_badly ON job (status) WHERE status IN ('failed', 'cancelled');
-- find by subject
CREATE INDEX job_subject ON job (subject) WHERE subject IS NOT NULL;
-- reuse: by time of completion, because the same content may have been reused a thousand times
CREATE INDEX job_content ON job (content_hash, job_type, completed_at) WHERE content_hash IS NOT NULL;
-- trees
CREATE INDEX job_root ON job (root_job_id) WHERE root_job_id IS NOT NULL;
-- concurrency keys: holders and parked jobs
CREATE INDEX job_key ON job (concurrency_key, status, queue, job_type, parked, priority DESC, scheduled_for, job_id)
    WHERE concurrency_key IS NOT NULL;
-- maintenance of concurrency keys: which have parked jobs
CREATE INDEX job_parked ON job (concurrency_key, queue, job_type) WHERE parked = 1;

CREATE TABLE edge (
    parent_id TEXT NOT NULL,
    child_id  TEXT NOT NULL,
    met       INTEGER NOT NULL DEFAULT 0 CHECK (met IN (0, 1)),
    PRIMARY KEY (parent_id, child_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX edge_child ON edge (child_id);
CREATE INDEX edge_unmet ON edge (parent_id) WHERE met = 0;

-- Jobs that ended with more dependents than one transaction releases.
CREATE TABLE release_due (
    parent_id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE dedup (
    dedup_key TEXT PRIMARY KEY,
    job_id    TEXT NOT NULL,
    until     INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE step (
    job_id      TEXT NOT NULL,
    name        TEXT NOT NULL,
    answer      TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    recorded_at INTEGER NOT NULL,
    PRIMARY KEY (job_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE worker (
    worker_id    TEXT PRIMARY KEY,
    heartbeat_at INTEGER NOT NULL,
    details      TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE job_type (
    job_type TEXT PRIMARY KEY,
    details  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

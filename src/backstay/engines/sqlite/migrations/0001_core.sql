-- The core: jobs and their places, their edges, guards and steps; workers and types.
-- Times are microseconds since the epoch, UTC. JSON is text. `seq` is the order of arrival, and the key of a job.

-- What was submitted. Written once.
CREATE TABLE job (
    seq                   INTEGER PRIMARY KEY,
    job_id                TEXT NOT NULL UNIQUE,
    job_type              TEXT NOT NULL,
    queue                 TEXT NOT NULL,
    priority              INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 100),
    payload               TEXT NOT NULL,
    scheduled_for         INTEGER NOT NULL,
    max_attempts          INTEGER NOT NULL CHECK (max_attempts >= 1),
    timeout_micros        INTEGER NOT NULL CHECK (timeout_micros > 0),
    subject               TEXT,
    tags                  TEXT,
    created_by            TEXT,
    job_stage             TEXT,
    parent_job_id         TEXT,
    root_job_id           TEXT,
    content_hash          TEXT,
    concurrency_key       TEXT,
    concurrency_limit     INTEGER,
    on_dependency_failure TEXT CHECK (on_dependency_failure = 'fail'), -- NULL: cancel
    payload_version       INTEGER NOT NULL CHECK (payload_version >= 1),
    fairness_key          TEXT,
    fairness_weight       INTEGER CHECK (fairness_weight > 1), -- NULL: 1
    traceparent           TEXT,
    created_at            INTEGER NOT NULL,
    dedup_key             TEXT,
    trigger_rule          TEXT, -- NULL: all_success
    rate_key              TEXT,
    rate_count            INTEGER,
    rate_micros           INTEGER,
    rate_cost             INTEGER CHECK (rate_cost > 1), -- NULL: 1
    schedule              TEXT,
    tick_at               INTEGER
) STRICT;

-- find by subject
CREATE INDEX job_subject ON job (subject) WHERE subject IS NOT NULL;
-- find by content, and whom to join
CREATE INDEX job_content ON job (content_hash, job_type) WHERE content_hash IS NOT NULL;
-- find by key, and whether any job has one
CREATE INDEX job_key ON job (concurrency_key) WHERE concurrency_key IS NOT NULL;
-- trees
CREATE INDEX job_root ON job (root_job_id) WHERE root_job_id IS NOT NULL;
CREATE INDEX job_parent ON job (parent_job_id, job_id) WHERE parent_job_id IS NOT NULL;

-- What is not plain about a job; most have no row. NULL is the usual.
CREATE TABLE detail (
    seq                INTEGER PRIMARY KEY,
    priority           INTEGER CHECK (priority BETWEEN 0 AND 100), -- now; NULL: as submitted
    scheduled_for      INTEGER,
    snoozes            INTEGER,
    give_backs         INTEGER,
    suspicion          INTEGER CHECK (suspicion BETWEEN 0 AND 2), -- see core/suspicion.py
    waits              INTEGER,
    join_name          TEXT,
    progress           REAL CHECK (progress BETWEEN 0 AND 1),
    stage              TEXT,
    worker_id          TEXT, -- of the last attempt, while the job neither runs nor has ended
    worker_version     TEXT,
    started_at         INTEGER,
    children           INTEGER,
    open_children      INTEGER CHECK (open_children >= 0),
    failed_children    INTEGER,
    cancelled_children INTEGER,
    joins              TEXT,    -- the identical job that it waits for
    reused_from        TEXT,
    rows_of            TEXT,    -- a reused job: whose rows it answers with, never a reused one itself …
    rows_attempt       INTEGER, -- … and of which attempt of that one
    result_tables      TEXT,    -- JSON array of names, set before the first row is there
    last_error         TEXT,
    error_type         TEXT,
    lost_at            INTEGER, -- its last failure was that its worker died or stalled, and when
    errors             TEXT,    -- JSON: the last ones
    logs               TEXT,
    log_location       TEXT,
    metrics            TEXT,
    artifacts          TEXT
) STRICT;

-- Places. A job has one row in one of these five tables, which tells its state.

-- Pending. The key is the line in which jobs are claimed; it starts with queue and type, so that foreign types are
-- never walked past. There is no index by job: its row is found by the whole key.
CREATE TABLE ready (
    queue             TEXT NOT NULL,
    job_type          TEXT NOT NULL,
    fair              INTEGER NOT NULL CHECK (fair = 0 OR fair = 1), -- whether it takes turns
    parked            INTEGER NOT NULL CHECK (parked BETWEEN 0 AND 2), -- 1: its key is full; 2: its rate is used up
    priority          INTEGER NOT NULL,
    scheduled_for     INTEGER NOT NULL,
    job_id            TEXT NOT NULL,
    seq               INTEGER NOT NULL,
    payload_version   INTEGER NOT NULL,
    suspicion         INTEGER NOT NULL,
    attempt           INTEGER NOT NULL,
    failures          INTEGER NOT NULL,
    version           INTEGER NOT NULL,
    awaited           INTEGER NOT NULL, -- whether a job waits on this one, or did
    concurrency_key   TEXT,
    concurrency_limit INTEGER,
    rate_key          TEXT,
    rate_count        INTEGER,
    rate_micros       INTEGER,
    rate_cost         INTEGER,
    fairness_key      TEXT,
    fairness_weight   INTEGER,
    expires_at        INTEGER, -- it is not to start from then on
    PRIMARY KEY (queue, job_type, fair, parked, priority DESC, scheduled_for, job_id)
) STRICT, WITHOUT ROWID;

-- claim of jobs that take turns
CREATE INDEX ready_fair ON ready
    (queue, job_type, parked, priority DESC, fairness_key, scheduled_for, job_id, payload_version, suspicion, expires_at)
    WHERE fairness_key IS NOT NULL;
-- claim of jobs that run alone, which are few
CREATE INDEX ready_alone ON ready (priority DESC, scheduled_for, job_id, queue, job_type, payload_version)
    WHERE suspicion = 2 AND parked = 0;
-- keys: which jobs are in sight, and which are parked; versions apart, because not every worker reads all
CREATE INDEX ready_key ON ready
    (concurrency_key, queue, job_type, payload_version, priority DESC, scheduled_for, job_id)
    WHERE concurrency_key IS NOT NULL AND parked = 0;
CREATE INDEX ready_parked ON ready
    (concurrency_key, queue, job_type, payload_version, priority DESC, scheduled_for, job_id)
    WHERE parked = 1;
CREATE INDEX ready_rate ON ready
    (rate_key, rate_count, rate_micros, queue, job_type, payload_version, priority DESC, scheduled_for, job_id)
    WHERE rate_key IS NOT NULL AND parked = 0;
CREATE INDEX ready_rate_parked ON ready
    (rate_key, rate_count, rate_micros, queue, job_type, payload_version, priority DESC, scheduled_for, job_id)
    WHERE parked = 2;

-- expire
CREATE INDEX ready_expiring ON ready (expires_at) WHERE expires_at IS NOT NULL;

-- Scheduled, retrying.
CREATE TABLE later (
    seq           INTEGER PRIMARY KEY,
    status        TEXT NOT NULL CHECK (status = 'scheduled' OR status = 'retrying'),
    queue         TEXT NOT NULL,
    job_type      TEXT NOT NULL,
    priority      INTEGER NOT NULL,
    scheduled_for INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    failures      INTEGER NOT NULL,
    version       INTEGER NOT NULL,
    awaited       INTEGER NOT NULL,
    expires_at    INTEGER
) STRICT;
-- promote
CREATE INDEX later_due ON later (scheduled_for);
-- depths: since when the oldest is due
CREATE INDEX later_kind ON later (job_type, queue, priority, status, scheduled_for);
-- expire
CREATE INDEX later_expiring ON later (expires_at) WHERE expires_at IS NOT NULL;

-- Waiting for other jobs.
CREATE TABLE waiting (
    seq           INTEGER PRIMARY KEY,
    queue         TEXT NOT NULL,
    job_type      TEXT NOT NULL,
    priority      INTEGER NOT NULL,
    scheduled_for INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    failures      INTEGER NOT NULL,
    version       INTEGER NOT NULL,
    awaited       INTEGER NOT NULL,
    unmet         INTEGER NOT NULL CHECK (unmet >= 0),
    awaits        TEXT, -- set: it waits for its children, or for an event: see core/waits.py
    wakes_at      INTEGER, -- when its wait for an event times out
    expires_at    INTEGER
) STRICT;
-- depths: since when the oldest is due
CREATE INDEX waiting_kind ON waiting (job_type, queue, priority, scheduled_for);
-- timeouts
CREATE INDEX waiting_wakes ON waiting (wakes_at) WHERE wakes_at IS NOT NULL;
-- expire
CREATE INDEX waiting_expiring ON waiting (expires_at) WHERE expires_at IS NOT NULL;

-- Processing. `token` is a hash.
CREATE TABLE running (
    seq              INTEGER PRIMARY KEY,
    attempt          INTEGER NOT NULL CHECK (attempt >= 1),
    failures         INTEGER NOT NULL,
    version          INTEGER NOT NULL,
    token            INTEGER NOT NULL,
    worker_id        TEXT NOT NULL,
    worker_version   TEXT,
    lease_expires_at INTEGER NOT NULL,
    started_at       INTEGER NOT NULL,
    awaited          INTEGER NOT NULL,
    concurrency_key  TEXT,
    noted_at         INTEGER,
    progress         REAL CHECK (progress BETWEEN 0 AND 1), -- NULL: none
    stage            TEXT
) STRICT;
-- how many hold a key
CREATE INDEX running_key ON running (concurrency_key) WHERE concurrency_key IS NOT NULL;

-- Completed, failed, cancelled. Type, content and subject are set where a job is found by them.
CREATE TABLE ended (
    seq             INTEGER PRIMARY KEY,
    status          TEXT NOT NULL CHECK (status = 'completed' OR status = 'failed' OR status = 'cancelled'),
    attempt         INTEGER NOT NULL,
    failures        INTEGER NOT NULL,
    version         INTEGER NOT NULL,
    worker_id       TEXT,
    worker_version  TEXT,
    started_at      INTEGER,
    completed_at    INTEGER NOT NULL,
    token           INTEGER, -- of the holder who ended it
    result          TEXT,
    result_artifact TEXT,
    job_type        TEXT,
    error_type      TEXT, -- of those that have failed
    content_hash    TEXT,
    subject         TEXT,
    awaited         INTEGER,
    CHECK (status = 'completed' OR (result IS NULL AND result_artifact IS NULL))
) STRICT;
-- find by state, for the states that are few
CREATE INDEX ended_badly ON ended (status) WHERE status IN ('failed', 'cancelled');
-- dead letters by type and error
CREATE INDEX ended_dead ON ended (job_type, error_type, completed_at) WHERE status = 'failed';
-- reuse: by time of completion, because the same content may have been reused a thousand times
CREATE INDEX ended_content ON ended (content_hash, job_type, completed_at) WHERE content_hash IS NOT NULL;
-- the job with rows of a subject and type that completed last
CREATE INDEX ended_latest ON ended (subject, job_type, completed_at) WHERE subject IS NOT NULL AND status = 'completed';

-- Where each job stands, for people who read the file.
CREATE VIEW place (seq, status) AS
SELECT seq, 'pending' FROM ready
UNION ALL SELECT seq, status FROM later
UNION ALL SELECT seq, 'waiting' FROM waiting
UNION ALL SELECT seq, 'processing' FROM running
UNION ALL SELECT seq, status FROM ended;

-- How many jobs of each kind there are ('stored'), and how many of them are in each state but pending and processing: see
-- engines/places.py. Jobs after meta's `counted_through` are not in 'stored' yet.
CREATE TABLE tally (
    job_type TEXT NOT NULL,
    queue    TEXT NOT NULL,
    priority INTEGER NOT NULL, -- as it is now
    status   TEXT NOT NULL,
    count    INTEGER NOT NULL,
    PRIMARY KEY (job_type, queue, priority, status)
) STRICT, WITHOUT ROWID;

-- What cannot be derived of the history of a job from the tables above.
CREATE TABLE event (
    seq           INTEGER NOT NULL,
    version       INTEGER NOT NULL,
    at            INTEGER NOT NULL,
    event         TEXT NOT NULL,
    source        TEXT,
    target        TEXT NOT NULL,
    attempt       INTEGER NOT NULL,
    by            TEXT,
    reason        TEXT,
    forget_steps  INTEGER NOT NULL DEFAULT 0 CHECK (forget_steps IN (0, 1)),
    details       TEXT, -- JSON: see core/event_details.py
    token         INTEGER, -- of the holder who wrote it
    PRIMARY KEY (seq, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE edge (
    parent_id TEXT NOT NULL,
    child_id  TEXT NOT NULL,
    met       INTEGER NOT NULL DEFAULT 0 CHECK (met IN (0, 1)),
    -- whether the child only joined an identical job: then it may run without it
    joined    INTEGER NOT NULL DEFAULT 0 CHECK (joined = 0 OR joined = 1),
    PRIMARY KEY (parent_id, child_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX edge_child ON edge (child_id);
CREATE INDEX edge_unmet ON edge (parent_id) WHERE met = 0;

-- Jobs that ended with more dependents than one transaction releases.
CREATE TABLE release_due (
    parent_id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- Children of a running attempt, until its settlement names them: msgpack of a list of NewJob.
CREATE TABLE staged (
    job_id  TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    part    INTEGER NOT NULL,
    jobs    BLOB NOT NULL,
    PRIMARY KEY (job_id, attempt, part)
) STRICT;

-- Jobs whose settlement has named its staged children, which are not all stored yet.
CREATE TABLE unpack_due (
    job_id  TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    PRIMARY KEY (job_id, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE dedup (
    dedup_key TEXT PRIMARY KEY,
    job_id    TEXT NOT NULL,
    until     INTEGER
) STRICT, WITHOUT ROWID;
-- guards go with the archive rows that they stand on
CREATE INDEX dedup_job ON dedup (job_id);

-- What handlers have recorded, and the events that were sent to their jobs: see core/waits.py.
CREATE TABLE step (
    job_id      TEXT NOT NULL,
    kind        TEXT NOT NULL,
    name        TEXT NOT NULL,
    answer      TEXT NOT NULL,
    attempt     INTEGER NOT NULL,
    recorded_at INTEGER NOT NULL,
    PRIMARY KEY (job_id, kind, name)
) STRICT, WITHOUT ROWID;

-- What handlers append with ctx.stream, in parts: JSON arrays.
CREATE TABLE output (
    job_id     TEXT NOT NULL,
    attempt    INTEGER NOT NULL,
    take       INTEGER NOT NULL,
    last       INTEGER NOT NULL,
    first      INTEGER NOT NULL,
    size       INTEGER NOT NULL, -- of the take up to here, in bytes
    written_at INTEGER NOT NULL,
    text       TEXT NOT NULL,
    PRIMARY KEY (job_id, attempt, take, last)
) STRICT, WITHOUT ROWID;

-- Correlation keys to which waits listen, or which keep events.
CREATE TABLE mailbox (
    event_key  TEXT PRIMARY KEY,
    content    TEXT NOT NULL, -- JSON: see core/waits.py
    expires_at INTEGER NOT NULL -- when to see whether anything in it still counts
) STRICT, WITHOUT ROWID;
CREATE INDEX mailbox_expires ON mailbox (expires_at);

CREATE TABLE result_table (
    name       TEXT PRIMARY KEY COLLATE NOCASE,
    definition TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE worker (
    worker_id    TEXT PRIMARY KEY,
    heartbeat_at INTEGER NOT NULL,
    details      TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Workers that have left or died, as they last were, for a day.
CREATE TABLE former_worker (
    worker_id    TEXT PRIMARY KEY,
    left_at      INTEGER NOT NULL,
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

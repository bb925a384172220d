-- The tables. `backstay.` stands for the schema's name, which is a setting.
-- Times are microseconds since the epoch, UTC. JSON is text, exactly as it was submitted.
--
-- What was submitted is stored apart from where the job stands. `job` is written once. A job has one row in exactly one
-- of the places ready, later, waiting, running and ended, and which one it is is its state. Claims and completions move
-- narrow rows from place to place, and leave the wide one alone. docs/explanation/postgresql.md says more.

-- Facts: what was submitted. Never updated, but that a job that waits may be given another payload.
CREATE TABLE backstay.job (
    job_id                uuid NOT NULL PRIMARY KEY,
    scheduled_for         bigint NOT NULL, -- as submitted, as is the priority: see detail
    timeout_micros        bigint NOT NULL,
    created_at            bigint NOT NULL,
    priority              integer NOT NULL,
    max_attempts          integer NOT NULL,
    payload_version       integer NOT NULL DEFAULT 1,
    job_type              text COLLATE "C" NOT NULL,
    queue                 text COLLATE "C" NOT NULL,
    subject               text COLLATE "C",
    tags                  text,
    created_by            text,
    job_stage             text,
    parent_job_id         uuid,
    root_job_id           uuid,
    content_hash          text COLLATE "C",
    concurrency_key       text COLLATE "C",
    concurrency_limit     integer,
    on_dependency_failure text COLLATE "C", -- NULL: cancel
    fairness_key          text COLLATE "C",
    fairness_weight       integer, -- NULL: 1
    traceparent           text, -- the trace that it was submitted in
    dedup_key             text COLLATE "C",
    trigger_rule          text COLLATE "C", -- NULL: all_success
    rate_key              text COLLATE "C",
    rate_count            integer,
    rate_micros           bigint,
    rate_cost             integer CHECK (rate_cost > 1), -- NULL: 1
    schedule              text COLLATE "C",
    tick_at               bigint,
    arrival               uuid, -- where it is among the ids, which are by time, if its own tells another time
    payload               text NOT NULL
) WITH (autovacuum_analyze_scale_factor = 0.05);

-- find by subject
CREATE INDEX job_subject ON backstay.job (subject, job_id) WHERE subject IS NOT NULL;
-- reuse: identical jobs that have not ended
CREATE INDEX job_content ON backstay.job (content_hash, job_type) WHERE content_hash IS NOT NULL;
-- trees
CREATE INDEX job_root ON backstay.job (root_job_id) WHERE root_job_id IS NOT NULL;
-- children of a job
CREATE INDEX job_parent ON backstay.job (parent_job_id, job_id) WHERE parent_job_id IS NOT NULL;
-- by arrival, of those whose id does not tell it
CREATE INDEX job_arrival ON backstay.job (arrival) WHERE arrival IS NOT NULL;

-- What has become of a job that is not plain; made when there is something to say.
CREATE TABLE backstay.detail (
    job_id             uuid NOT NULL PRIMARY KEY,
    priority           integer, -- current ones; NULL: as submitted
    scheduled_for      bigint,
    snoozes            integer,
    give_backs         integer,
    suspicion          integer, -- 1: it was lost once; 2: it runs alone. See core/suspicion.py
    waits              integer,
    join_name          text,
    progress           double precision,
    stage              text,
    children           integer,
    open_children      integer,
    failed_children    integer,
    cancelled_children integer,
    joins              uuid,
    reused_from        uuid,
    rows_of            uuid, -- a reused job: whose rows it answers with, never a reused one itself …
    rows_attempt       integer, -- … and of which attempt of that one
    result_tables      text, -- JSON array of names, set before the first row is there
    last_error         text,
    error_type         text COLLATE "C", -- of the last error, by which dead letters are grouped
    lost_at            bigint, -- its last failure was that its worker was lost, and when
    errors             text,
    worker_id          text COLLATE "C", -- of the last attempt, of a job that is neither processing nor ended
    worker_version     text,
    started_at         bigint,
    logs               text,
    log_location       text,
    metrics            text,
    artifacts          text
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

-- Pending jobs: the line. `line` says in which of three they stand: 0 without a key, 1 with a concurrency or rate key,
-- 2 with a fairness key; 3 and 4 are those of 1 and 2 that are parked, because their key has no room. The defaults are
-- those of a plain job that has just come in.
CREATE TABLE backstay.ready (
    scheduled_for     bigint NOT NULL,
    job_id            uuid NOT NULL,
    priority          integer NOT NULL,
    payload_version   integer NOT NULL DEFAULT 1,
    attempt           integer NOT NULL DEFAULT 0,
    failures          integer NOT NULL DEFAULT 0,
    version           integer NOT NULL DEFAULT 1,
    line              smallint NOT NULL DEFAULT 0,
    suspicion         smallint NOT NULL DEFAULT 0,
    parked            smallint NOT NULL DEFAULT 0, -- 1: by its concurrency key; 2: by its rate key
    awaited           boolean NOT NULL DEFAULT false, -- whether a job waits on this one, or did
    findable          boolean NOT NULL DEFAULT false, -- by its content or its rows, once it has completed
    child             boolean NOT NULL DEFAULT false,
    queue             text COLLATE "C" NOT NULL,
    job_type          text COLLATE "C" NOT NULL,
    concurrency_key   text COLLATE "C",
    concurrency_limit integer,
    rate_key          text COLLATE "C",
    rate_count        integer,
    rate_micros       bigint,
    rate_cost         integer,
    fairness_key      text COLLATE "C",
    fairness_weight   integer,
    expires_at        bigint -- it is not to start from then on
) WITH (
    -- Rows come and go: a vacuum that keeps up, by number and not by share.
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_insert_threshold = -1,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1, autovacuum_analyze_threshold = 5000
);

-- claim; and the place of a job, whose facts and detail tell the whole key but whether it is parked. A job without a key
-- has no entry but this. Version and suspicion come last, to be read without the row.
CREATE UNIQUE INDEX ready_line ON backstay.ready
    (line, queue, job_type, priority DESC, scheduled_for, job_id, payload_version, suspicion);
-- claim in turns
CREATE INDEX ready_fair ON backstay.ready
    (queue, job_type, priority DESC, fairness_key, scheduled_for, job_id, payload_version, suspicion) WHERE line = 2;
-- claim of jobs that run alone, which are few
CREATE INDEX ready_alone ON backstay.ready (priority DESC, scheduled_for, job_id, queue, job_type, payload_version)
    WHERE suspicion = 2 AND parked = 0;
-- keys: which jobs are in sight, and which are parked; versions apart, because not every worker reads all
CREATE INDEX ready_key ON backstay.ready
    (concurrency_key, parked, queue, job_type, payload_version, priority DESC, scheduled_for, job_id)
    WHERE concurrency_key IS NOT NULL;
CREATE INDEX ready_parked ON backstay.ready (concurrency_key) WHERE parked = 1;
CREATE INDEX ready_rate ON backstay.ready
    (rate_key, rate_count, rate_micros, parked, queue, job_type, payload_version, priority DESC, scheduled_for, job_id)
    WHERE rate_key IS NOT NULL;

-- expire
CREATE INDEX ready_expiring ON backstay.ready (expires_at) WHERE expires_at IS NOT NULL;

-- Scheduled and retrying jobs.
CREATE TABLE backstay.later (
    job_id        uuid NOT NULL PRIMARY KEY,
    scheduled_for bigint NOT NULL,
    priority      integer NOT NULL,
    attempt       integer NOT NULL,
    failures      integer NOT NULL,
    version       integer NOT NULL,
    awaited       boolean NOT NULL,
    status        text COLLATE "C" NOT NULL, -- scheduled or retrying
    queue         text COLLATE "C" NOT NULL,
    job_type      text COLLATE "C" NOT NULL,
    expires_at    bigint
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
-- promote
CREATE INDEX later_due ON backstay.later (scheduled_for);
-- depths: since when the oldest is due
CREATE INDEX later_kind ON backstay.later (job_type, queue, priority, status, scheduled_for);
-- expire
CREATE INDEX later_expiring ON backstay.later (expires_at) WHERE expires_at IS NOT NULL;

-- Jobs that wait: for those that they depend on, for their children, or for an event.
CREATE TABLE backstay.waiting (
    job_id        uuid NOT NULL PRIMARY KEY,
    scheduled_for bigint NOT NULL,
    priority      integer NOT NULL,
    attempt       integer NOT NULL,
    failures      integer NOT NULL,
    version       integer NOT NULL,
    unmet         integer NOT NULL,
    awaited       boolean NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    job_type      text COLLATE "C" NOT NULL,
    awaits        text, -- set: it waits for its children, or for an event: see core/waits.py
    wakes_at      bigint, -- when its wait for an event times out
    expires_at    bigint
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
-- timeouts
CREATE INDEX waiting_wakes ON backstay.waiting (wakes_at) WHERE wakes_at IS NOT NULL;
-- expire
CREATE INDEX waiting_expiring ON backstay.waiting (expires_at) WHERE expires_at IS NOT NULL;

-- depths: since when the oldest is due
CREATE INDEX waiting_kind ON backstay.waiting (job_type, queue, priority, scheduled_for);

-- Processing jobs: claims.
CREATE TABLE backstay.running (
    job_id           uuid NOT NULL PRIMARY KEY,
    lease_expires_at bigint NOT NULL,
    started_at       bigint NOT NULL,
    token            bigint NOT NULL, -- a digest of it
    attempt          integer NOT NULL,
    failures         integer NOT NULL,
    version          integer NOT NULL,
    awaited          boolean NOT NULL,
    findable         boolean NOT NULL,
    child            boolean NOT NULL,
    worker_id        text COLLATE "C" NOT NULL,
    worker_version   text,
    concurrency_key  text COLLATE "C",
    noted_at         bigint,
    progress         double precision, -- NULL: 0
    stage            text -- NULL: none
) WITH (
    -- A lease is extended and progress noted in place.
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.1, autovacuum_analyze_threshold = 5000
);
-- how many of a key run
CREATE INDEX running_key ON backstay.running (concurrency_key) WHERE concurrency_key IS NOT NULL;

-- Jobs that ended.
CREATE TABLE backstay.ended (
    job_id          uuid NOT NULL PRIMARY KEY,
    completed_at    bigint NOT NULL,
    started_at      bigint,
    token           bigint, -- of the claim, if its holder ended it: a repeated settlement is recognised by it
    attempt         integer NOT NULL,
    failures        integer NOT NULL,
    version         integer NOT NULL,
    awaited         boolean, -- NULL: no job ever waited on it
    status          text COLLATE "C" NOT NULL, -- completed, failed or cancelled
    worker_id       text COLLATE "C",
    worker_version  text,
    result          text,
    result_artifact text,
    job_type        text COLLATE "C", -- these only where the job is found by them
    error_type      text COLLATE "C",
    content_hash    text COLLATE "C",
    subject         text COLLATE "C"
) WITH (autovacuum_analyze_scale_factor = 0.05);
-- find by state, for the states that are few
CREATE INDEX ended_state ON backstay.ended (status, job_id) WHERE status IN ('failed', 'cancelled');
-- dead letters by type and error
CREATE INDEX ended_dead ON backstay.ended (job_type, error_type, completed_at) WHERE status = 'failed';
-- reuse
CREATE INDEX ended_content ON backstay.ended (content_hash, job_type, completed_at) WHERE content_hash IS NOT NULL;
-- the job with rows of a subject and type that completed last
CREATE INDEX ended_latest ON backstay.ended (subject, job_type, completed_at) WHERE subject IS NOT NULL;

-- How many jobs of each kind there are ('stored'), and how many of them are in each state but pending and processing: see
-- engines/places.py. Those who count at the same time must not wait for each other's commits: each has a shard, and
-- maintenance adds the shards up in -1. Jobs that are in `arrived` are not in 'stored' yet.
CREATE TABLE backstay.tally (
    shard    integer NOT NULL,
    priority integer NOT NULL, -- as it is now
    count    bigint NOT NULL,
    job_type text COLLATE "C" NOT NULL,
    queue    text COLLATE "C" NOT NULL,
    status   text COLLATE "C" NOT NULL,
    PRIMARY KEY (shard, job_type, queue, priority, status)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

-- History that does not follow from facts and place: see engines/places.py.
CREATE TABLE backstay.event (
    job_id        uuid NOT NULL,
    version       integer NOT NULL,
    attempt       integer NOT NULL,
    at            bigint NOT NULL,
    token         bigint, -- of the claim's holder, if he wrote it
    event         text COLLATE "C" NOT NULL,
    source        text COLLATE "C",
    target        text COLLATE "C" NOT NULL,
    by            text,
    reason        text,
    forget_steps  boolean NOT NULL DEFAULT false,
    details       jsonb, -- see core/event_details.py
    PRIMARY KEY (job_id, version)
);

CREATE TABLE backstay.edge (
    parent_id uuid NOT NULL,
    child_id  uuid NOT NULL,
    met       boolean NOT NULL DEFAULT false,
    joined    boolean NOT NULL DEFAULT false, -- the child only joined an identical job: it may run without it
    PRIMARY KEY (parent_id, child_id)
) WITH (fillfactor = 90);
CREATE INDEX edge_child ON backstay.edge (child_id);
CREATE INDEX edge_unmet ON backstay.edge (parent_id) WHERE NOT met;

-- Jobs that ended with more dependents than one transaction releases, or by SQL.
CREATE TABLE backstay.release_due (
    parent_id uuid PRIMARY KEY,
    dropping  boolean NOT NULL DEFAULT false -- SQL has dropped it: it goes once those that joined it have been released
);

CREATE TABLE backstay.dedup (
    dedup_key text COLLATE "C" PRIMARY KEY,
    job_id    uuid NOT NULL,
    until     bigint
);
CREATE INDEX dedup_job ON backstay.dedup (job_id);

-- What handlers have recorded, and the events that were sent to their jobs: see core/waits.py.
CREATE TABLE backstay.step (
    job_id      uuid NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    answer      text NOT NULL,
    attempt     integer NOT NULL,
    recorded_at bigint NOT NULL,
    PRIMARY KEY (job_id, kind, name)
);

-- What handlers append with ctx.stream, in parts: JSON arrays.
CREATE TABLE backstay.output (
    job_id     uuid NOT NULL,
    attempt    integer NOT NULL,
    take       integer NOT NULL,
    first      integer NOT NULL,
    last       integer NOT NULL,
    size       integer NOT NULL, -- of the take up to here, in bytes
    written_at bigint NOT NULL,
    text       text NOT NULL,
    PRIMARY KEY (job_id, attempt, take, last)
);

-- Correlation keys to which waits listen, or which keep events.
CREATE TABLE backstay.mailbox (
    event_key  text COLLATE "C" PRIMARY KEY,
    content    text NOT NULL, -- JSON: see core/waits.py
    expires_at bigint NOT NULL -- when to see whether anything in it still counts
);
CREATE INDEX mailbox_expires ON backstay.mailbox (expires_at);

CREATE TABLE backstay.worker (
    worker_id    text COLLATE "C" PRIMARY KEY,
    heartbeat_at bigint NOT NULL,
    details      text NOT NULL
);

-- Workers that have left or died, as they last were, for a day.
CREATE TABLE backstay.former_worker (
    worker_id    text COLLATE "C" PRIMARY KEY,
    left_at      bigint NOT NULL,
    heartbeat_at bigint NOT NULL,
    details      text NOT NULL
);

CREATE TABLE backstay.job_type (
    job_type text COLLATE "C" PRIMARY KEY,
    details  text NOT NULL
);

-- A bucket for each key and rate: under one key, two types with different rates do not draw from the same.
CREATE TABLE backstay.rate (
    rate_key    text COLLATE "C" NOT NULL,
    rate_count  integer NOT NULL,
    rate_micros bigint NOT NULL,
    full_at     bigint NOT NULL, -- when the bucket would be full again
    wanted      integer NOT NULL DEFAULT 1, -- the cost of the job that waits first: with less, nothing starts
    due_at      bigint,          -- when to look at its parked jobs again; set for every one that has some
    set_at      bigint NOT NULL, -- what the clock said when this was written
    PRIMARY KEY (rate_key, rate_count, rate_micros)
);
CREATE INDEX rate_due ON backstay.rate (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX rate_set ON backstay.rate (set_at);
CREATE INDEX rate_full ON backstay.rate (full_at) WHERE due_at IS NULL;

-- Turns: how far each fairness key has come, and how far the lane has. A key behind its lane has no row.
CREATE TABLE backstay.fair_lane (
    queue     text COLLATE "C" NOT NULL,
    job_type  text COLLATE "C" NOT NULL,
    position  bigint NOT NULL,
    after_key text COLLATE "C" NOT NULL DEFAULT '', -- where the next look at more keys than one claim compares begins
    PRIMARY KEY (queue, job_type)
);
CREATE TABLE backstay.fair_key (
    queue        text COLLATE "C" NOT NULL,
    job_type     text COLLATE "C" NOT NULL,
    fairness_key text COLLATE "C" NOT NULL, -- '' stands for jobs without one
    position     bigint NOT NULL,
    turn_at      bigint NOT NULL, -- when it last had its turn
    PRIMARY KEY (queue, job_type, fairness_key)
);

CREATE TABLE backstay.queue (
    name         text COLLATE "C" PRIMARY KEY,
    paused_at    bigint,
    paused_by    text,
    pause_reason text,
    paused_until bigint,
    max_pending  integer CHECK (max_pending >= 1)
);

-- What was set at run time for a type or a key.
CREATE TABLE backstay.run_limit (
    of           text COLLATE "C" NOT NULL CHECK (of IN ('type', 'key')),
    name         text COLLATE "C" NOT NULL,
    concurrency  integer CHECK (concurrency >= 1),
    rate_count   integer,
    rate_micros  bigint,
    set_at       bigint,
    set_by       text,
    paused_at    bigint,
    paused_by    text,
    pause_reason text,
    paused_until bigint,
    PRIMARY KEY (of, name)
);

CREATE TABLE backstay.schedule (
    name        text COLLATE "C" PRIMARY KEY,
    cron        text NOT NULL,
    timezone    text NOT NULL,
    missed      text NOT NULL CHECK (missed IN ('skip', 'one', 'all')),
    job_type    text NOT NULL,
    template    text NOT NULL,
    created_at  bigint NOT NULL,
    updated_at  bigint NOT NULL,
    next_at     bigint NOT NULL,
    version     integer NOT NULL CHECK (version >= 1),
    paused_at   bigint,
    paused_by   text,
    last_at     bigint,
    last_job_id text,
    overlap     text NOT NULL CHECK (overlap IN ('queue', 'skip', 'replace')),
    jitter_micros bigint NOT NULL,
    starts_at   bigint,
    ends_at     bigint,
    declared_by text,
    skipped     bigint NOT NULL,
    skipped_at  bigint
);
CREATE INDEX schedule_next ON backstay.schedule (next_at, name) WHERE paused_at IS NULL;

-- Which code of an app declares its schedules: see core/declarations.py.
CREATE TABLE backstay.declaration (
    origin  text COLLATE "C" PRIMARY KEY,
    version integer NOT NULL,
    details text NOT NULL
);

-- A row per kind, outcome, bucket and shard: those who count at the same time must not wait for each other's commits.
CREATE TABLE backstay.counter (
    minute        bigint NOT NULL,
    job_type      text COLLATE "C" NOT NULL,
    queue         text COLLATE "C" NOT NULL,
    priority      integer NOT NULL,
    outcome       text COLLATE "C" NOT NULL,
    shard         integer NOT NULL,
    bucket        integer NOT NULL, -- of how long attempts ran and waited; 0 for what was no attempt
    count         bigint NOT NULL,
    ran_micros    bigint NOT NULL,
    waited_micros bigint NOT NULL,
    PRIMARY KEY (minute, job_type, queue, priority, outcome, shard, bucket)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- Submits, until maintenance adds them to `counter` and `tally`: those of past minutes, so that a row is written often
-- before it is deleted once. A submit writes nothing else that counts it.
CREATE TABLE backstay.arrived (
    minute   bigint NOT NULL,
    count    bigint NOT NULL,
    priority integer NOT NULL,
    shard    integer NOT NULL,
    job_type text COLLATE "C" NOT NULL,
    queue    text COLLATE "C" NOT NULL,
    PRIMARY KEY (minute, job_type, queue, priority, shard)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 500);

-- All that was counted, by minute.
CREATE VIEW backstay.counted AS
SELECT minute, job_type, queue, priority, outcome, bucket, count, ran_micros, waited_micros FROM backstay.counter
UNION ALL
SELECT minute, job_type, queue, priority, 'submitted', 0, count, 0, 0 FROM backstay.arrived;

-- What is left of a job after its retention.
CREATE TABLE backstay.archive (
    job_id      uuid PRIMARY KEY,
    archived_at bigint NOT NULL,
    status      text COLLATE "C" NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled')),
    has_files   boolean NOT NULL,
    details     text NOT NULL
);
CREATE INDEX archive_age ON backstay.archive (archived_at);
CREATE INDEX archive_files ON backstay.archive (job_id) WHERE has_files;

-- Files of jobs: full logs, artifacts, large results. In the database, so that every worker and every reader has them,
-- on whatever host. Here and not on the job's row: they are written once, and no claim or settlement reads them.

CREATE TABLE backstay.file (
    file_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id      uuid NOT NULL,
    attempt     integer NOT NULL CHECK (attempt >= 0), -- 0: the job's own, over all its attempts, as its log is
    name        text COLLATE "C" NOT NULL,
    size        bigint NOT NULL CHECK (size >= 0),
    last_append uuid, -- to recognise a repeat after a lost answer …
    made        text, -- … and a write, likewise. One that is under way is called <name>/<made>
    UNIQUE (job_id, attempt, name)
);

-- In parts, because one value ends at 1 GB and a log grows. No two parts of a file overlap, and there is no gap.
CREATE TABLE backstay.file_part (
    file_id bigint NOT NULL REFERENCES backstay.file ON DELETE CASCADE,
    start   bigint NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (file_id, start)
);

-- Children of a running attempt, until its settlement names them: msgpack of a list of NewJob.
CREATE TABLE backstay.staged (
    job_id  uuid NOT NULL,
    attempt integer NOT NULL,
    part    integer NOT NULL,
    jobs    bytea NOT NULL,
    PRIMARY KEY (job_id, attempt, part)
);

-- Jobs whose settlement has named its staged children, which are not all stored yet.
CREATE TABLE backstay.unpack_due (
    job_id  uuid NOT NULL,
    attempt integer NOT NULL,
    PRIMARY KEY (job_id, attempt)
);

-- Events that were sent by SQL. Maintenance hands them to the jobs that wait for them.
CREATE TABLE backstay.event_due (
    place     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id  text NOT NULL,
    name      text NOT NULL,
    payload   text NOT NULL,
    job_id    uuid,
    event_key text,
    sent_by   text
);

-- Parents whose last child was ended by SQL: maintenance decides whether they resume.
CREATE TABLE backstay.join_due (
    job_id uuid PRIMARY KEY
);

CREATE TABLE backstay.result_table (
    name       text COLLATE "C" PRIMARY KEY,
    definition text NOT NULL
);

-- Transfer: its state.
CREATE TABLE backstay.move (
    only_one boolean PRIMARY KEY DEFAULT true CHECK (only_one),
    state    text NOT NULL -- JSON
);

-- Keys of the HTTP API.
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

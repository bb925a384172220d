-- The whole schema. `backstay.` stands for the schema's name, which is a setting.
-- Times are microseconds since the epoch, UTC. JSON is text, exactly as it was submitted.

-- No CHECK says what a state implies: one that does takes a sixth of a claim's time and of a completion's, and a tenth of
-- a single submit's, because the server reads its text again for each statement. The transitions are decided in one
-- place, and the tests check after each of them that every row is valid.
CREATE TABLE backstay.job (
    seq                   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id                uuid NOT NULL UNIQUE,
    job_type              text COLLATE "C" NOT NULL,
    queue                 text COLLATE "C" NOT NULL,
    status                text COLLATE "C" NOT NULL,
    priority              integer NOT NULL,
    scheduled_for         bigint NOT NULL,
    parked                boolean NOT NULL DEFAULT false,
    rate_parked           boolean NOT NULL DEFAULT false, -- it waits for its rate key, not for its concurrency key
    attempt               integer NOT NULL DEFAULT 0,
    version               integer NOT NULL DEFAULT 1,
    failures              integer NOT NULL DEFAULT 0,
    snoozes               integer NOT NULL DEFAULT 0,
    give_backs            integer NOT NULL DEFAULT 0,
    max_attempts          integer NOT NULL,
    timeout_micros        bigint NOT NULL,
    claim_token           text COLLATE "C",
    worker_id             text COLLATE "C",
    worker_version        text,
    lease_expires_at      bigint,
    created_at            bigint NOT NULL,
    updated_at            bigint NOT NULL,
    started_at            bigint,
    completed_at          bigint,
    progress              double precision NOT NULL DEFAULT 0,
    stage                 text NOT NULL DEFAULT '',
    subject               text COLLATE "C",
    tags                  text,
    created_by            text,
    dedup_key             text COLLATE "C",
    content_hash          text COLLATE "C",
    reused_from           uuid,
    joins                 uuid,
    concurrency_key       text COLLATE "C",
    concurrency_limit     integer,
    rate_key              text COLLATE "C",
    rate_count            integer,
    rate_micros           bigint,
    fairness_key          text COLLATE "C",
    fairness_weight       integer NOT NULL DEFAULT 1,
    parent_job_id         uuid,
    root_job_id           uuid,
    job_stage             text,
    on_dependency_failure text NOT NULL DEFAULT 'cancel',
    awaited               boolean NOT NULL DEFAULT false, -- whether a job waits on this one, or did
    unmet_dependencies    integer NOT NULL DEFAULT 0,
    payload_version       integer NOT NULL DEFAULT 1,
    schedule              text COLLATE "C",
    tick_at               bigint,
    traceparent           text, -- the trace that it was submitted in
    -- Of trees and results. NULL is the usual: all_success, no children, never waited, no rows.
    trigger_rule          text COLLATE "C",
    children              integer,
    open_children         integer,
    failed_children       integer,
    cancelled_children    integer,
    awaits                text, -- set: it waits for its children
    waits                 integer,
    join_name             text,
    result_tables         text, -- JSON array of names, set before the first row is there
    rows_of               uuid, -- a reused job: whose rows it answers with, never a reused one itself …
    rows_attempt          integer, -- … and of which attempt of that one
    last_error            text,
    errors                text,
    logs                  text,
    log_location          text,
    metrics               text,
    artifacts             text,
    history               text NOT NULL,
    result                text,
    result_artifact       text,
    payload               text NOT NULL
) WITH (
    -- Every job is updated twice in its life: room for that on its page, and a vacuum that keeps up.
    fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.02
);

-- claim: each pending job is in one of these three, by whether a turn or a limit has to be looked at for it. The version
-- comes last, to be read without the row.
CREATE INDEX job_ready ON backstay.job (queue, job_type, priority DESC, scheduled_for, job_id, payload_version)
    WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL;
CREATE INDEX job_keyed ON backstay.job (queue, job_type, parked, priority DESC, scheduled_for, job_id, payload_version)
    WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL);
CREATE INDEX job_fair ON backstay.job
    (queue, job_type, parked, priority DESC, fairness_key, scheduled_for, job_id, payload_version)
    WHERE status = 'pending' AND fairness_key IS NOT NULL;
-- promote
CREATE INDEX job_due ON backstay.job (scheduled_for) WHERE status IN ('scheduled', 'retrying');
-- expired, and what a worker runs. Not by lease: extending one would then never be a cheap update.
CREATE INDEX job_processing ON backstay.job (worker_id) WHERE status = 'processing';
-- find by state, for the states that are few
CREATE INDEX job_state ON backstay.job (status, seq)
    WHERE status IN ('waiting', 'scheduled', 'retrying', 'failed', 'cancelled');
-- find by subject
CREATE INDEX job_subject ON backstay.job (subject, seq) WHERE subject IS NOT NULL;
-- reuse
CREATE INDEX job_content ON backstay.job (content_hash, job_type, completed_at) WHERE content_hash IS NOT NULL;
-- trees
CREATE INDEX job_root ON backstay.job (root_job_id) WHERE root_job_id IS NOT NULL;
-- children of a job
CREATE INDEX job_parent ON backstay.job (parent_job_id, job_id) WHERE parent_job_id IS NOT NULL;
-- the job with rows of a subject and type that completed last
CREATE INDEX job_latest ON backstay.job (subject, job_type, completed_at)
    WHERE subject IS NOT NULL AND status = 'completed' AND result_tables IS NOT NULL;
-- keys: holders, which jobs are in sight, and which are parked; versions apart, because not every worker reads all
CREATE INDEX job_key ON backstay.job
    (concurrency_key, status, queue, job_type, payload_version, parked, priority DESC, scheduled_for, job_id)
    WHERE concurrency_key IS NOT NULL AND status IN ('pending', 'processing');
CREATE INDEX job_parked ON backstay.job
    (concurrency_key, queue, job_type, payload_version, priority DESC, scheduled_for, job_id)
    WHERE parked AND NOT rate_parked AND concurrency_key IS NOT NULL;
CREATE INDEX job_rate ON backstay.job
    (rate_key, rate_count, rate_micros, queue, job_type, payload_version, priority DESC, scheduled_for, job_id)
    WHERE status = 'pending' AND rate_key IS NOT NULL AND NOT parked;
CREATE INDEX job_rate_parked ON backstay.job
    (rate_key, rate_count, rate_micros, queue, job_type, payload_version, priority DESC, scheduled_for, job_id)
    WHERE rate_parked;

CREATE TABLE backstay.edge (
    parent_id uuid NOT NULL,
    child_id  uuid NOT NULL,
    met       boolean NOT NULL DEFAULT false,
    joined    boolean NOT NULL DEFAULT false, -- the child only joined an identical job: it may run without it
    PRIMARY KEY (parent_id, child_id)
);
CREATE INDEX edge_child ON backstay.edge (child_id);
CREATE INDEX edge_unmet ON backstay.edge (parent_id) WHERE NOT met;

-- Jobs that ended with more dependents than one transaction releases.
CREATE TABLE backstay.release_due (parent_id uuid PRIMARY KEY);

CREATE TABLE backstay.dedup (
    dedup_key text COLLATE "C" PRIMARY KEY,
    job_id    uuid NOT NULL,
    until     bigint
);
CREATE INDEX dedup_job ON backstay.dedup (job_id);

CREATE TABLE backstay.step (
    job_id      uuid NOT NULL,
    name        text COLLATE "C" NOT NULL,
    answer      text NOT NULL,
    attempt     integer NOT NULL,
    recorded_at bigint NOT NULL,
    PRIMARY KEY (job_id, name)
);

CREATE TABLE backstay.worker (
    worker_id    text COLLATE "C" PRIMARY KEY,
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
    max_pending  integer CHECK (max_pending >= 1)
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
    last_job_id text
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

CREATE FUNCTION backstay.micros() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- A history event. Versions count on from the one that the row has.
CREATE FUNCTION backstay.event(
    version integer, at bigint, event text, source text, target text, attempt integer, by text, reason text)
RETURNS text LANGUAGE sql STABLE PARALLEL SAFE AS -- as to_json is: else it would not be inlined
$$ SELECT '[' || version || ',' || at || ',"' || event || '",' || coalesce('"' || source || '"', 'null') || ',"'
    || target || '",' || attempt || ',' || coalesce(to_json(by)::text, 'null')
    || coalesce(',' || to_json(reason)::text, '') || ']' $$;

-- The first and the last hundred events; the versions in them tell how many were dropped.
CREATE FUNCTION backstay.shortened(history text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS
$$
DECLARE
    events text[] := string_to_array(history, E'\n');
BEGIN
    IF cardinality(events) <= 200 THEN
        RETURN history;
    END IF;
    RETURN array_to_string(events[:100] || events[cardinality(events) - 99:], E'\n');
END
$$;
CREATE FUNCTION backstay.trimmed(history text, version integer) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN version % 64 = 63 THEN backstay.shortened(history) ELSE history END $$;

-- The bucket of an attempt: the same as bucket_of in core/states.py, bounds in microseconds. A bound belongs to the
-- bucket below it.
CREATE FUNCTION backstay.bucket_of(ran bigint, waited bigint) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$
    SELECT 1
        + 16 * width_bucket(ran - 1, '{10000,50000,100000,250000,500000,1000000,2500000,5000000,10000000,30000000,60000000,300000000,900000000,3600000000,14400000000}'::bigint[])
        + width_bucket(waited - 1, '{10000,50000,100000,250000,500000,1000000,2500000,5000000,10000000,30000000,60000000,300000000,900000000,3600000000,14400000000}'::bigint[])
$$;

-- Add to the counters of this minute, in a shard that this connection has for itself, nearly always.
CREATE FUNCTION backstay.count_jobs(
    at bigint, of_type text, of_queue text, of_priority integer, as_outcome text, jobs bigint, ran bigint, waited bigint)
RETURNS void LANGUAGE sql AS
$$
    INSERT INTO backstay.counter AS c
        (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros, waited_micros)
    VALUES (at - at % 60000000, of_type, of_queue, of_priority, as_outcome, pg_backend_pid() % 64, 0, jobs, ran, waited)
    ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count,
        ran_micros = c.ran_micros + excluded.ran_micros, waited_micros = c.waited_micros + excluded.waited_micros
$$;

-- QueueFull if this many more jobs would exceed the limit. Submits to a limited queue wait for one another.
CREATE FUNCTION backstay.refuse_over_limit(to_queue text, coming bigint) RETURNS void LANGUAGE plpgsql AS
$$
DECLARE
    most integer;
    waiting bigint;
    noted_as text;
    noted jsonb;
BEGIN
    SELECT max_pending INTO most FROM backstay.queue WHERE name = to_queue;
    IF most IS NULL OR coming = 0 THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('backstay queue ' || to_queue, 0));
    -- Counted once in a transaction, and noted in it: a thousand jobs with keys must not count the queue a thousand
    -- times. Counted again before a refusal: what was claimed since has made room.
    noted_as := 'backstay_pending.in_' || 'backstay.queue'::regclass::oid;
    noted := coalesce(nullif(current_setting(noted_as, true), ''), '{}');
    waiting := (noted ->> to_queue)::bigint;
    IF waiting IS NULL OR waiting + coming > most THEN
        SELECT count(*) INTO waiting FROM (
            (SELECT 1 FROM backstay.job WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL
                AND rate_key IS NULL AND queue = to_queue LIMIT most)
            UNION ALL
            (SELECT 1 FROM backstay.job WHERE status = 'pending' AND fairness_key IS NULL
                AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL) AND queue = to_queue LIMIT most)
            UNION ALL
            (SELECT 1 FROM backstay.job
                WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = to_queue LIMIT most)
        ) AS found;
    END IF;
    PERFORM set_config(noted_as, (noted || jsonb_build_object(to_queue, waiting + coming))::text, true);
    IF waiting + coming > most THEN
        RAISE EXCEPTION USING ERRCODE = 'BS003', MESSAGE = format(
            'the queue %s accepts %s pending jobs and has room for %s: nothing was stored;'
            ' submit again when workers have caught up', to_queue, most, greatest(0, most - waiting)),
            DETAIL = to_queue;
    END IF;
END
$$;

-- How a job stands, in the jobs or in the archive.
CREATE FUNCTION backstay.status_of(id uuid) RETURNS text LANGUAGE sql STABLE AS
$$
    SELECT coalesce((SELECT status FROM backstay.job WHERE job_id = id),
        (SELECT status FROM backstay.archive WHERE job_id = id))
$$;

-- The first state of a job, from the outcomes of its dependencies: the same as began in core/dependencies.py. One that
-- is failed or cancelled by dependencies that had ended before begins as waiting.
CREATE FUNCTION backstay.began(
    rule text, completed integer, failed integer, cancelled integer, active integer, on_failure text, later boolean)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$
    SELECT CASE
        WHEN CASE rule
            WHEN 'all_success' THEN failed + cancelled > 0
            WHEN 'none_failed' THEN failed > 0
            WHEN 'one_success' THEN completed + active = 0 AND failed + cancelled > 0
            ELSE false END
        THEN CASE on_failure WHEN 'fail' THEN 'failed' ELSE 'cancelled' END
        WHEN active > 0 AND NOT (rule = 'one_success' AND completed > 0) THEN 'waiting'
        WHEN later THEN 'scheduled'
        ELSE 'pending' END
$$;

-- The newest completed job with the same type and content. Index: job_content.
CREATE FUNCTION backstay.reusable(j jsonb) RETURNS uuid LANGUAGE sql VOLATILE AS
$$
    SELECT job_id FROM backstay.job AS d
    WHERE content_hash = j ->> 'content_hash' AND job_type = j ->> 'job_type' AND status = 'completed'
      AND completed_at >= (j ->> 'reuse_since')::bigint
      AND (rows_of IS NULL -- or its rows are withdrawn, or about to be, for their job runs again
        OR EXISTS (SELECT 1 FROM backstay.job AS r
            WHERE r.job_id = d.rows_of AND r.attempt = d.rows_attempt AND (r.status || '') = 'completed')
        OR EXISTS (SELECT 1 FROM backstay.archive AS k
            WHERE k.job_id = d.rows_of AND (k.details::json ->> 'attempt')::integer = d.rows_attempt))
    ORDER BY completed_at DESC LIMIT 1
$$;

-- How long a job took, in the jobs or in the archive: what a reuse of its result saves.
CREATE FUNCTION backstay.took(id uuid) RETURNS bigint LANGUAGE sql STABLE AS
$$
    SELECT coalesce((SELECT greatest(0, completed_at - started_at) FROM backstay.job WHERE job_id = id),
        (SELECT (details::json ->> 'processing_micros')::bigint FROM backstay.archive WHERE job_id = id), 0)
$$;

-- Everything that several special jobs will wait for, in the order in which everyone does: names of what must be there
-- once, rows, names of keys. One by one, two who submit at the same time could wait for each other.
CREATE FUNCTION backstay.hold_for(jobs jsonb) RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
    PERFORM pg_advisory_xact_lock(lock) FROM (
        SELECT hashtextextended('backstay id ' || (j ->> 'job_id'), 0) AS lock FROM jsonb_array_elements(jobs) AS j
            WHERE (j ->> 'own_id')::boolean
        UNION SELECT hashtextextended('backstay dedup ' || (j ->> 'dedup_key'), 0) FROM jsonb_array_elements(jobs) AS j
            WHERE j ->> 'dedup_key' IS NOT NULL
        UNION SELECT hashtextextended('backstay content ' || (j ->> 'job_type') || ' ' || (j ->> 'content_hash'), 0)
            FROM jsonb_array_elements(jobs) AS j WHERE j ->> 'reuse_since' IS NOT NULL
        ORDER BY lock) AS locks;
    PERFORM pg_advisory_xact_lock(lock) FROM (
        SELECT DISTINCT hashtextextended('backstay queue ' || q.name, 0) AS lock
        FROM jsonb_array_elements(jobs) AS j JOIN backstay.queue AS q ON q.name = j ->> 'queue'
        WHERE q.max_pending IS NOT NULL
        ORDER BY lock) AS locks;
    PERFORM 1 FROM backstay.job WHERE job_id IN (
        SELECT parent::uuid FROM jsonb_array_elements(jobs) AS j, jsonb_array_elements_text(j -> 'depends_on') AS parent
        UNION
        SELECT same.job_id FROM jsonb_array_elements(jobs) AS j JOIN backstay.job AS same
            ON same.content_hash = j ->> 'content_hash' AND same.job_type = j ->> 'job_type'
                AND same.completed_at IS NULL AND same.joins IS NULL
        WHERE j ->> 'reuse_since' IS NOT NULL)
    ORDER BY job_id FOR UPDATE;
    PERFORM pg_advisory_xact_lock(lock) FROM (
        SELECT hashtextextended('backstay key ' || (j ->> 'concurrency_key'), 0) AS lock
            FROM jsonb_array_elements(jobs) AS j WHERE j ->> 'concurrency_key' IS NOT NULL
        UNION SELECT hashtextextended('backstay rate ' || (j ->> 'rate_key'), 0) FROM jsonb_array_elements(jobs) AS j
            WHERE j ->> 'rate_key' IS NOT NULL
        ORDER BY lock) AS locks;
END
$$;

-- Whether two texts say the same: one from SQL has been through jsonb, which has an order of keys and blanks of its own.
CREATE FUNCTION backstay.same_json(one text, other text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
$$
BEGIN
    RETURN one = other OR one::jsonb = other::jsonb;
EXCEPTION WHEN data_exception THEN -- JSON that jsonb does not take, as one with a \u0000
    RETURN false;
END
$$;

-- One job that is more than a row:
-- {"job_id": …, "status": …, "existing": …, "reused_from": …, "rate_parked": …, "parent_job_id": …}.
-- What it adds to its parent's numbers is left to the caller, who may bring thousands: see backstay.count_children.
-- "admitted": it came with a parent that was, so that no queue is too full for it. "promised": its parent has ended on
-- the strength of it; what it depended on and is gone since was no obstacle.
-- Locks on names come first, and in an order, so that two who submit the same see each other.
-- Without sequential scans: its plans are kept, and may have been made while the table was empty.
CREATE FUNCTION backstay.insert_special(j jsonb, client_now bigint, store_now bigint) RETURNS jsonb
LANGUAGE plpgsql SET enable_seqscan = off AS
$$
DECLARE
    at bigint := coalesce(store_now, backstay.micros());
    own uuid := j ->> 'job_id';
    kind text := j ->> 'job_type';
    key text := j ->> 'dedup_key';
    later boolean := (j ->> 'scheduled_for')::bigint > client_now;
    due bigint := (j ->> 'scheduled_for')::bigint + CASE WHEN later THEN 0 ELSE at - client_now END;
    parents uuid[] := coalesce(ARRAY(SELECT DISTINCT value::uuid FROM jsonb_array_elements_text(j -> 'depends_on')), '{}');
    written_as integer := coalesce((j ->> 'payload_version')::integer, 1);
    root uuid := (j ->> 'root_job_id')::uuid;
    rate_starts integer := (j -> 'rate' ->> 'count')::integer;
    rate_span bigint := (j -> 'rate' ->> 'micros')::bigint;
    target uuid;
    guarded_until bigint;
    target_status text;
    rule text := coalesce(j ->> 'trigger_rule', 'all_success');
    admitted boolean := coalesce((j ->> 'admitted')::boolean, false);
    donor uuid;
    ran uuid; -- the job that brought the donor's result: another, where that was reused itself
    leader uuid;
    active uuid[] := '{}';
    completed integer := 0;
    failed uuid[] := '{}';
    cancelled uuid[] := '{}';
    breaker uuid;
    starts text;
    ends text;
    is_parked boolean := false;
    is_over_rate boolean := false;
    room bigint;
    bucket_full bigint;
    bucket_due bigint;
    found record;
BEGIN
    PERFORM pg_advisory_xact_lock(lock) FROM (
        SELECT hashtextextended('backstay id ' || own, 0) AS lock WHERE (j ->> 'own_id')::boolean
        UNION SELECT hashtextextended('backstay dedup ' || key, 0) WHERE key IS NOT NULL
        UNION SELECT hashtextextended('backstay content ' || kind || ' ' || (j ->> 'content_hash'), 0)
            WHERE j ->> 'reuse_since' IS NOT NULL
        ORDER BY lock) AS locks;
    IF (j ->> 'own_id')::boolean AND backstay.status_of(own) IS NOT NULL THEN
        RETURN jsonb_build_object('job_id', own, 'status', backstay.status_of(own), 'existing', true);
    END IF;
    IF key IS NOT NULL THEN
        SELECT d.job_id, d.until INTO target, guarded_until FROM backstay.dedup AS d WHERE d.dedup_key = key FOR UPDATE;
        target_status := backstay.status_of(target);
        IF target_status IS NOT NULL AND (CASE WHEN guarded_until IS NULL
                THEN target_status NOT IN ('completed', 'failed', 'cancelled') ELSE at < guarded_until END) THEN
            -- The archive has no payload to compare: the repeat is accepted.
            IF (j ->> 'dedup_conflict_is_error')::boolean
                    AND NOT backstay.same_json((SELECT payload FROM backstay.job WHERE job_id = target), j ->> 'payload') THEN
                RAISE EXCEPTION USING ERRCODE = 'BS001', MESSAGE = format(
                    'dedup key %L belongs to job %s, whose payload is different', key, target);
            END IF;
            RETURN jsonb_build_object('job_id', target, 'status', target_status, 'existing', true);
        END IF;
    END IF;
    -- Held before any row is, as by those who submit many; whether there is room is asked of a job that will wait there.
    PERFORM pg_advisory_xact_lock(hashtextextended('backstay queue ' || name, 0)) FROM backstay.queue
    WHERE name = j ->> 'queue' AND max_pending IS NOT NULL AND NOT later AND NOT admitted;
    IF j ->> 'parent_job_id' IS NOT NULL THEN
        -- Held, so that retention does not take the tree away from under this job.
        SELECT coalesce(root_job_id, job_id) INTO root FROM backstay.job
        WHERE job_id = (j ->> 'parent_job_id')::uuid FOR KEY SHARE;
        IF root IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'BS002', MESSAGE = format(
                'no job %s to be the parent, or it was archived: submit it first; nothing was stored', j ->> 'parent_job_id');
        END IF;
    END IF;
    IF j ->> 'reuse_since' IS NOT NULL THEN
        donor := backstay.reusable(j);
        IF donor IS NULL THEN
            SELECT job_id INTO leader FROM backstay.job
            WHERE content_hash = j ->> 'content_hash' AND job_type = kind AND completed_at IS NULL AND joins IS NULL
            ORDER BY seq LIMIT 1 FOR UPDATE;
            IF leader IS NULL THEN
                donor := backstay.reusable(j); -- it may have ended while we waited for its row
            ELSIF leader = ANY (parents) OR rule <> 'all_success' AND cardinality(parents) > 0 THEN
                leader := NULL; -- it waits for that one anyway, or may start before it: on its own terms
            END IF;
        END IF;
    END IF;
    IF leader IS NOT NULL THEN
        parents := parents || leader;
    END IF;
    -- One that is completed at once waits for no other job; if it is retried manually, it runs by itself.
    -- Locking the parents makes their completion wait until this job is there to be released by it, or be seen by us.
    PERFORM 1 FROM backstay.job WHERE job_id = ANY (parents) ORDER BY job_id FOR UPDATE;
    FOR found IN SELECT p, backstay.status_of(p) AS status FROM unnest(parents) AS p LOOP
        IF found.status IS NULL AND NOT coalesce((j ->> 'promised')::boolean, false) THEN
            RAISE EXCEPTION USING ERRCODE = 'BS002', MESSAGE = format(
                'no job %s to depend on: submit it first; nothing was stored', found.p);
        END IF;
        CASE coalesce(found.status, 'completed')
            WHEN 'completed' THEN completed := completed + 1;
            WHEN 'failed' THEN failed := failed || found.p;
            WHEN 'cancelled' THEN cancelled := cancelled || found.p;
            ELSE active := active || found.p;
        END CASE;
    END LOOP;
    starts := CASE WHEN donor IS NOT NULL THEN 'completed' ELSE backstay.began(rule, completed, cardinality(failed),
        cardinality(cancelled), cardinality(active), j ->> 'on_dependency_failure', later) END;
    IF starts IN ('failed', 'cancelled') THEN
        ends := starts;
        starts := 'waiting';
        breaker := (failed || CASE rule WHEN 'none_failed' THEN '{}' ELSE cancelled END)[1];
    END IF;
    IF starts = 'pending' THEN
        IF NOT admitted THEN
            PERFORM backstay.refuse_over_limit(j ->> 'queue', 1);
        END IF;
        -- Transactions that start, end or unpark jobs of these keys lock their names too: what is counted here stays
        -- true.
        PERFORM pg_advisory_xact_lock(lock) FROM (
            SELECT hashtextextended('backstay key ' || (j ->> 'concurrency_key'), 0) AS lock
                WHERE j ->> 'concurrency_key' IS NOT NULL
            UNION SELECT hashtextextended('backstay rate ' || (j ->> 'rate_key'), 0) WHERE j ->> 'rate_key' IS NOT NULL
            ORDER BY lock) AS locks;
    END IF;
    IF starts = 'pending' AND j ->> 'concurrency_limit' IS NOT NULL AND j ->> 'concurrency_key' IS NOT NULL THEN
        room := (j ->> 'concurrency_limit')::integer;
        is_parked := room <= (SELECT count(*) FROM backstay.job
                WHERE concurrency_key = j ->> 'concurrency_key' AND status = 'processing')
            + (SELECT count(*) FROM (
                SELECT priority, scheduled_for, job_id FROM backstay.job
                WHERE concurrency_key = j ->> 'concurrency_key' AND status = 'pending' AND queue = j ->> 'queue'
                  AND job_type = kind AND payload_version = written_as AND NOT parked
                ORDER BY priority DESC, scheduled_for, job_id
                LIMIT room) AS in_sight
                -- those that come later are parked when this one is claimed
                WHERE (-priority, scheduled_for, job_id) < (-(j ->> 'priority')::integer, due, own));
    END IF;
    IF starts = 'pending' AND NOT is_parked AND j ->> 'rate_key' IS NOT NULL AND rate_starts IS NOT NULL THEN
        SELECT backstay.bucket(full_at, set_at, at), due_at INTO bucket_full, bucket_due FROM backstay.rate
        WHERE rate_key = j ->> 'rate_key' AND rate_count = rate_starts AND rate_micros = rate_span;
        -- 200: see _IN_SIGHT_MAX in admission.py.
        room := least(200, backstay.rate_room(rate_starts, rate_span, bucket_full, at));
        is_over_rate := room <= (SELECT count(*) FROM (
            SELECT priority, scheduled_for, job_id FROM backstay.job
            WHERE rate_key = j ->> 'rate_key' AND rate_count = rate_starts AND rate_micros = rate_span
              AND status = 'pending' AND NOT parked AND queue = j ->> 'queue' AND job_type = kind
              AND payload_version = written_as
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT room) AS in_sight
            WHERE (-priority, scheduled_for, job_id) < (-(j ->> 'priority')::integer, due, own));
        IF is_over_rate AND bucket_due IS NULL THEN
            -- 2^62: as many are claimable as may start; see NO_TIME in admission.py.
            INSERT INTO backstay.rate (rate_key, rate_count, rate_micros, full_at, due_at, set_at)
            VALUES (j ->> 'rate_key', rate_starts, rate_span, coalesce(bucket_full, 0),
                CASE WHEN room > 0 THEN 4611686018427387904
                    ELSE backstay.rate_due_at(rate_starts, rate_span, bucket_full, at) END, at)
            ON CONFLICT (rate_key, rate_count, rate_micros) DO UPDATE SET full_at = excluded.full_at,
                due_at = excluded.due_at, set_at = excluded.set_at;
        END IF;
    END IF;
    INSERT INTO backstay.job (job_id, job_type, queue, priority, payload, scheduled_for, max_attempts, timeout_micros,
        subject, tags, created_by, job_stage, parent_job_id, root_job_id, content_hash, concurrency_key,
        concurrency_limit, on_dependency_failure, payload_version, fairness_key, fairness_weight, rate_key, rate_count,
        rate_micros, schedule, tick_at, traceparent, trigger_rule, dedup_key, unmet_dependencies, parked, rate_parked, joins, status, created_at,
        updated_at, history, completed_at, progress, stage, reused_from, result, result_artifact, metrics, result_tables,
        rows_of, rows_attempt)
    SELECT own, kind, j ->> 'queue', (j ->> 'priority')::integer, j ->> 'payload', due, (j ->> 'max_attempts')::integer,
        (j ->> 'timeout_micros')::bigint, j ->> 'subject', j ->> 'tags', j ->> 'created_by', j ->> 'job_stage',
        (j ->> 'parent_job_id')::uuid, root, j ->> 'content_hash', j ->> 'concurrency_key',
        (j ->> 'concurrency_limit')::integer, coalesce(j ->> 'on_dependency_failure', 'cancel'),
        written_as, j ->> 'fairness_key',
        coalesce((j ->> 'fairness_weight')::integer, 1), j ->> 'rate_key', rate_starts, rate_span,
        j ->> 'schedule', (j ->> 'tick_at')::bigint, j ->> 'traceparent', nullif(rule, 'all_success'), key,
        CASE WHEN starts = 'waiting' THEN cardinality(active) ELSE 0 END,
        is_parked OR is_over_rate, is_over_rate, leader, starts, at, at,
        backstay.event(1, at, CASE WHEN donor IS NULL THEN 'submit' ELSE 'reuse' END, NULL, starts, 0,
            j ->> 'created_by', NULL),
        CASE WHEN donor IS NOT NULL THEN at END, CASE WHEN donor IS NULL THEN 0 ELSE 1 END,
        CASE WHEN donor IS NULL THEN '' ELSE 'complete' END, coalesce(d.reused_from, donor), d.result,
        d.result_artifact, d.metrics, d.result_tables,
        CASE WHEN d.result_tables IS NOT NULL THEN coalesce(d.rows_of, d.job_id) END,
        CASE WHEN d.result_tables IS NOT NULL THEN coalesce(d.rows_attempt, d.attempt) END
    FROM (SELECT 1) AS one LEFT JOIN backstay.job AS d ON d.job_id = donor;
    INSERT INTO backstay.edge (parent_id, child_id, met, joined)
    SELECT DISTINCT p, own, p <> ALL (active), coalesce(p = leader, false) FROM unnest(parents) AS p;
    IF cardinality(active) > 0 THEN
        UPDATE backstay.job SET awaited = true WHERE job_id = ANY (active) AND NOT awaited;
    END IF;
    IF key IS NOT NULL THEN
        INSERT INTO backstay.dedup (dedup_key, job_id, until) VALUES (key, own, (j ->> 'dedup_until')::bigint)
        ON CONFLICT (dedup_key) DO UPDATE SET job_id = excluded.job_id, until = excluded.until;
    END IF;
    PERFORM backstay.count_jobs(at, kind, j ->> 'queue', (j ->> 'priority')::integer, 'submitted', 1, 0, 0);
    IF donor IS NOT NULL THEN
        PERFORM backstay.count_jobs(at, kind, j ->> 'queue', (j ->> 'priority')::integer, 'completed', 1, 0, 0);
        SELECT reused_from INTO ran FROM backstay.job WHERE job_id = own;
        PERFORM backstay.count_jobs(at, kind, j ->> 'queue', (j ->> 'priority')::integer, 'reused', 1,
            backstay.took(ran), 0);
    ELSIF ends IS NOT NULL THEN
        starts := ends;
        UPDATE backstay.job SET status = starts, version = 2, completed_at = at, unmet_dependencies = 0, joins = NULL,
            stage = CASE starts WHEN 'failed' THEN 'error' ELSE '' END,
            last_error = CASE starts WHEN 'failed'
                THEN 'DependencyFailed: ' || breaker || ' ' || backstay.status_of(breaker) END,
            history = history || E'\n' || backstay.event(2, at, 'release', 'waiting', starts, 0, NULL,
                breaker || ' ' || backstay.status_of(breaker))
        WHERE job_id = own;
        PERFORM backstay.count_jobs(at, kind, j ->> 'queue', (j ->> 'priority')::integer, starts, 1, 0, 0);
    END IF;
    RETURN jsonb_build_object('job_id', own, 'status', starts, 'existing', false, 'reused_from', ran,
        'rate_parked', is_over_rate, 'parent_job_id', j ->> 'parent_job_id');
END
$$;

-- How many starts a rate still allows: the same as room in core/admission.py.
CREATE FUNCTION backstay.rate_room(starts integer, span bigint, full_at bigint, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT floor((span - least(greatest(coalesce(full_at, 0) - at, 0), span))::numeric * starts / span)::bigint $$;

-- When the next may start.
CREATE FUNCTION backstay.rate_due_at(starts integer, span bigint, full_at bigint, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT greatest(at, least(coalesce(full_at, 0), at + span) + ceil(span::numeric / starts)::bigint - span) $$;

-- When a bucket is full again by this clock, which may have been set back since. 60 s: see _SET_BACK in admission.py.
CREATE FUNCTION backstay.bucket(full_at bigint, set_at bigint, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN set_at - at > 60000000 THEN full_at - (set_at - at) ELSE full_at END $$;

-- The last errors of a job, with one more.
CREATE FUNCTION backstay.with_error(errors text, error text, kept integer) RETURNS text LANGUAGE sql IMMUTABLE AS
$$
    SELECT json_agg(value ORDER BY place)::text FROM (
        SELECT value, place FROM (
            SELECT value, ordinality AS place FROM json_array_elements(coalesce(errors, '[]')::json) WITH ORDINALITY
            UNION ALL SELECT error::json, 1000000
        ) AS every
        ORDER BY place DESC LIMIT kept
    ) AS last
$$;

-- Functions that statements share, and the view of jobs as they stand.

CREATE FUNCTION backstay.micros() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- The bucket of an attempt: the same as bucket_of in core/states.py, bounds in microseconds. A bound belongs to the
-- bucket below it.
CREATE FUNCTION backstay.bucket_of(ran bigint, waited bigint) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$
    SELECT 1
        + {buckets} * width_bucket(ran - 1, ARRAY[{bucket_bounds}]::bigint[])
        + width_bucket(waited - 1, ARRAY[{bucket_bounds}]::bigint[])
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
            SELECT 1 FROM backstay.ready WHERE line IN (0, 1, 2, 3, 4) AND queue = to_queue LIMIT most
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

-- How a job stands, in the jobs or in the archive. One that is in no other place is in the line.
CREATE FUNCTION backstay.status_of(id uuid) RETURNS text LANGUAGE sql STABLE AS
$$
    SELECT coalesce(
        (SELECT status FROM backstay.ended WHERE job_id = id),
        (SELECT 'processing' FROM backstay.running WHERE job_id = id),
        (SELECT status FROM backstay.later WHERE job_id = id),
        (SELECT 'waiting' FROM backstay.waiting WHERE job_id = id),
        (SELECT 'pending' FROM backstay.job WHERE job_id = id),
        (SELECT status FROM backstay.archive WHERE job_id = id))
$$;

-- What the line has of a job beyond its attempts: facts, and what has changed since.
CREATE VIEW backstay.claimable AS
SELECT j.job_id, j.queue, j.job_type, coalesce(d.priority, j.priority) AS priority,
    coalesce(d.scheduled_for, j.scheduled_for) AS scheduled_for, j.payload_version,
    (CASE WHEN j.fairness_key IS NOT NULL THEN 2 WHEN j.concurrency_key IS NOT NULL OR j.rate_key IS NOT NULL THEN 1
        ELSE 0 END)::smallint AS line,
    coalesce(d.suspicion, 0)::smallint AS suspicion,
    j.content_hash IS NOT NULL OR d.result_tables IS NOT NULL AS findable,
    j.parent_job_id IS NOT NULL AS child,
    j.concurrency_key, j.concurrency_limit, j.rate_key, j.rate_count, j.rate_micros, j.rate_cost, j.fairness_key,
    j.fairness_weight
FROM backstay.job AS j
LEFT JOIN LATERAL (
    SELECT priority, scheduled_for, suspicion, result_tables FROM backstay.detail WHERE job_id = j.job_id OFFSET 0
) AS d ON true;

-- Jobs as they stand: facts, detail and place together, as a record has them. Each place is looked up by its key for
-- each job, whatever the planner thinks of the tables. The place in the line has a key of several columns: parked jobs
-- stand two lines further on.
CREATE VIEW backstay.standing AS
SELECT j.job_id, j.job_type, j.queue, j.payload, j.max_attempts, j.timeout_micros, j.created_at, j.subject,
    j.parent_job_id, j.root_job_id, j.tags, j.created_by, j.job_stage, j.dedup_key, j.content_hash, j.payload_version,
    j.schedule, j.tick_at, j.traceparent, j.concurrency_key, j.concurrency_limit,
    coalesce(j.on_dependency_failure, 'cancel') AS on_dependency_failure,
    coalesce(j.trigger_rule, 'all_success') AS trigger_rule, j.fairness_key,
    coalesce(j.fairness_weight, 1) AS fairness_weight, j.rate_key, j.rate_count, j.rate_micros,
    coalesce(j.rate_cost, 1) AS rate_cost, j.arrival,
    j.scheduled_for AS submitted_for,
    coalesce(d.priority, j.priority) AS priority,
    coalesce(d.scheduled_for, j.scheduled_for) AS scheduled_for,
    coalesce(d.snoozes, 0) AS snoozes, coalesce(d.give_backs, 0) AS give_backs, coalesce(d.suspicion, 0) AS suspicion,
    coalesce(d.waits, 0) AS waits, d.join_name, coalesce(d.children, 0) AS children,
    coalesce(d.open_children, 0) AS open_children, coalesce(d.failed_children, 0) AS failed_children,
    coalesce(d.cancelled_children, 0) AS cancelled_children, d.joins, d.reused_from,
    d.rows_of, d.rows_attempt, d.result_tables, d.last_error, d.error_type, d.lost_at, d.errors, d.logs, d.log_location,
    d.metrics, d.artifacts,
    p.status, p.attempt, p.failures, p.version, coalesce(p.awaited, false) AS awaited, coalesce(p.unmet, 0) AS unmet,
    p.awaits, p.expires_at, p.parked::integer AS parked, coalesce(p.worker_id, d.worker_id) AS worker_id,
    coalesce(p.worker_version, d.worker_version) AS worker_version, p.token, p.lease_expires_at, p.noted_at,
    coalesce(p.started_at, d.started_at) AS started_at, p.completed_at, p.result, p.result_artifact,
    CASE p.status WHEN 'processing' THEN coalesce(p.progress, 0) WHEN 'completed' THEN 1
        ELSE coalesce(d.progress, 0) END AS progress,
    CASE p.status WHEN 'processing' THEN coalesce(p.stage, '') WHEN 'completed' THEN 'complete'
        ELSE coalesce(d.stage, '') END AS stage,
    coalesce(p.completed_at, p.noted_at, CASE p.status WHEN 'processing' THEN p.started_at END,
        (SELECT at FROM backstay.event WHERE job_id = j.job_id ORDER BY version DESC LIMIT 1), j.created_at) AS updated_at,
    coalesce((SELECT max(version) FROM backstay.event WHERE job_id = j.job_id), 0) AS stored
FROM backstay.job AS j
LEFT JOIN LATERAL (SELECT * FROM backstay.detail WHERE job_id = j.job_id OFFSET 0) AS d ON true
CROSS JOIN LATERAL (
    SELECT status, attempt, failures, version, awaited, NULL::integer AS unmet, NULL::text AS awaits,
        0::smallint AS parked, worker_id, worker_version, token, NULL::bigint AS lease_expires_at, started_at,
        completed_at, result, result_artifact, NULL::bigint AS noted_at, NULL::double precision AS progress,
        NULL::text AS stage, NULL::bigint AS expires_at
    FROM backstay.ended WHERE job_id = j.job_id
    UNION ALL
    SELECT 'processing', attempt, failures, version, awaited, NULL, NULL, 0, worker_id, worker_version, token,
        lease_expires_at, started_at, NULL, NULL, NULL, noted_at, progress, stage, NULL
    FROM backstay.running WHERE job_id = j.job_id
    UNION ALL
    SELECT status, attempt, failures, version, awaited, NULL, NULL, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, expires_at
    FROM backstay.later WHERE job_id = j.job_id
    UNION ALL
    SELECT 'waiting', attempt, failures, version, awaited, unmet, awaits, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, expires_at
    FROM backstay.waiting WHERE job_id = j.job_id
    UNION ALL
    SELECT 'pending', attempt, failures, version, awaited, NULL, NULL, parked, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, expires_at
    FROM backstay.ready
    WHERE line = ANY (CASE WHEN j.fairness_key IS NOT NULL THEN '{2,4}'
            WHEN j.concurrency_key IS NOT NULL OR j.rate_key IS NOT NULL THEN '{1,3}' ELSE '{0}' END::smallint[])
      AND queue = j.queue AND job_type = j.job_type AND priority = coalesce(d.priority, j.priority)
      AND scheduled_for = coalesce(d.scheduled_for, j.scheduled_for) AND job_id = j.job_id
    LIMIT 1
) AS p;

-- An instant of ours as PostgreSQL writes them; to the microsecond.
CREATE FUNCTION backstay.instant(micros bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT timestamptz '1970-01-01 00:00:00+00' + micros * interval '1 microsecond' $$;

-- Jobs for queries of your own: the fields of a record, with PostgreSQL's own types.
CREATE VIEW backstay.jobs AS
SELECT job_id, job_type, queue, status, priority, payload::jsonb AS payload, subject,
    ARRAY(SELECT jsonb_array_elements_text(tags::jsonb)) AS tags, created_by,
    backstay.instant(created_at) AS created_at, backstay.instant(updated_at) AS updated_at,
    backstay.instant(scheduled_for) AS scheduled_for, backstay.instant(started_at) AS started_at,
    backstay.instant(completed_at) AS completed_at, backstay.instant(lease_expires_at) AS lease_expires_at,
    attempt, failures, max_attempts, timeout_micros / 1000000.0 AS timeout_seconds, version, worker_id, worker_version,
    progress, stage, result::jsonb AS result, last_error, error_type, metrics::jsonb AS metrics, dedup_key, content_hash,
    reused_from, parent_job_id, root_job_id, job_stage, schedule, backstay.instant(tick_at) AS tick_at,
    (completed_at - started_at) / 1000 AS processing_time_ms
FROM backstay.standing;

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
            WHEN 'one_failed' THEN failed + active = 0 AND completed + cancelled > 0
            ELSE false END
        THEN CASE on_failure WHEN 'fail' THEN 'failed' ELSE 'cancelled' END
        WHEN active > 0 AND NOT (rule = 'one_success' AND completed > 0 OR rule = 'one_failed' AND failed > 0) THEN 'waiting'
        WHEN later THEN 'scheduled'
        ELSE 'pending' END
$$;

-- The newest completed job with the same type and content. Index: ended_content.
CREATE FUNCTION backstay.reusable(of_type text, of_content text, since bigint) RETURNS uuid LANGUAGE sql VOLATILE AS
$$
    SELECT e.job_id FROM backstay.ended AS e LEFT JOIN LATERAL (
        SELECT rows_of, rows_attempt FROM backstay.detail WHERE job_id = e.job_id OFFSET 0) AS d ON true
    WHERE e.content_hash = of_content AND e.job_type = of_type AND e.status = 'completed' AND e.completed_at >= since
      AND (d.rows_of IS NULL -- or its rows are withdrawn, or about to be, for their job runs again
        OR EXISTS (SELECT 1 FROM backstay.ended AS r
            WHERE r.job_id = d.rows_of AND r.attempt = d.rows_attempt AND (r.status || '') = 'completed')
        OR EXISTS (SELECT 1 FROM backstay.archive AS k
            WHERE k.job_id = d.rows_of AND (k.details::json ->> 'attempt')::integer = d.rows_attempt))
    ORDER BY e.completed_at DESC LIMIT 1
$$;

-- How long a job took, in the jobs or in the archive: what a reuse of its result saves.
CREATE FUNCTION backstay.took(id uuid) RETURNS bigint LANGUAGE sql STABLE AS
$$
    SELECT coalesce((SELECT greatest(0, completed_at - started_at) FROM backstay.ended WHERE job_id = id),
        (SELECT (details::json ->> 'processing_micros')::bigint FROM backstay.archive WHERE job_id = id), 0)
$$;

-- A job's place among the ids, which are by time, if its own id tells another time than that at which it came: by more
-- than 5 seconds, as much as two clocks may be apart. The ids of children have the time of their parent. `place` keeps the
-- order of those that come together.
CREATE FUNCTION backstay.arrival(id uuid, at bigint, child boolean, place bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$
    SELECT CASE
        WHEN abs(('x' || translate(left(id::text, 13), '-', ''))::bit(48)::bigint - at / 1000)
                > CASE WHEN child THEN 0 ELSE 5000 END
            OR substr(id::text, 15, 1) <> '7'
        THEN (lpad(to_hex(at / 1000), 12, '0') || '7' || lpad(to_hex(least(place, 4095)), 3, '0')
            || right(md5(id::text), 16))::uuid END
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

-- How many starts a rate still allows, of jobs that cost as much as the first that waits: with room, as in Level of
-- core/admission.py.
CREATE FUNCTION backstay.rate_room(starts integer, span bigint, wanted integer, full_at bigint, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$
    SELECT floor((span - least(greatest(coalesce(full_at, 0) - at, 0), span))::numeric * starts / span)::bigint
        / least(wanted, starts)
$$;

-- When the next may start.
CREATE FUNCTION backstay.rate_due_at(starts integer, span bigint, wanted integer, full_at bigint, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$
    SELECT greatest(at,
        least(coalesce(full_at, 0), at + span) + ceil(span::numeric * least(wanted, starts) / starts)::bigint - span)
$$;

-- When a bucket is full again by this clock, which may have been set back since. 60 s: see SET_BACK in core/admission.py.
CREATE FUNCTION backstay.bucket(full_at bigint, set_at bigint, at bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN set_at - at > 60000000 THEN full_at - (set_at - at) ELSE full_at END $$;

-- The rows of jobs that SQL removes.
CREATE FUNCTION backstay.drop_rows(job_ids uuid[]) RETURNS void LANGUAGE plpgsql AS
$$
DECLARE
    each text;
BEGIN
    FOR each IN SELECT name FROM backstay.result_table WHERE job_ids IS NOT NULL LOOP
        EXECUTE format('DELETE FROM backstay.%I WHERE job_id = ANY ($1)', 'result_' || each) USING job_ids;
    END LOOP;
END
$$;

-- The argument of the trigger is its message. A restore sets backstay_move.restoring.
CREATE FUNCTION backstay.refuse_moved() RETURNS trigger LANGUAGE plpgsql AS
$$
BEGIN
    IF coalesce(current_setting('backstay_move.restoring', true), '') = 'on' THEN
        RETURN NEW; -- of a statement: none
    END IF;
    RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'BS006';
END
$$;

-- Ids in the order of time, as Python makes them; PostgreSQL has such a function of its own from 18 on.
CREATE FUNCTION backstay.new_id() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS
$$
    SELECT encode(
        substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
        || set_byte(set_byte(random.bytes, 0, (get_byte(random.bytes, 0) & 15) | 112), 2,
            (get_byte(random.bytes, 2) & 63) | 128), 'hex')::uuid
    FROM (SELECT substring(uuid_send(gen_random_uuid()) FROM 1 FOR 6) || substring(uuid_send(gen_random_uuid()) FROM 1 FOR 4)
        AS bytes) AS random
$$;

-- The channel of wake-ups is named after the schema, which this function is in.
CREATE FUNCTION backstay.channel() RETURNS text LANGUAGE plpgsql STABLE AS
$$
BEGIN
    RETURN 'backstay_' || (SELECT n.nspname FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE p.oid = 'backstay.channel()'::regprocedure);
END
$$;


-- How many jobs of a key may run at once: what was set at run time for the key, or for the type of this name, or else what
-- they were submitted with. The same as RunLimits in core/admission.py.
CREATE FUNCTION backstay.allowed(key text, own integer) RETURNS integer LANGUAGE sql STABLE AS
$$
    SELECT coalesce((SELECT concurrency FROM backstay.run_limit WHERE of IN ('key', 'type') AND name = key
        AND concurrency IS NOT NULL ORDER BY of LIMIT 1), own)
$$;

-- Let in jobs of a concurrency key: as many as could run, for each queue, type and version apart, because jobs that no
-- worker here runs must not take the room. Each is unparked that is among the first of the parked and claimable ones;
-- claimable ones that come later do not count. The key's name is locked by the caller: a job that is submitted at the
-- same time is parked before and seen here, or finds the room. Indexes: running_key, ready_key; one seek for each lane.
CREATE FUNCTION backstay.unpark_key(key text, key_limit integer) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS
$$
DECLARE
    room integer := backstay.allowed(key, key_limit) - (SELECT count(*) FROM backstay.running WHERE concurrency_key = key);
    lane record;
    changed integer;
    unparked integer := 0;
BEGIN
    IF room <= 0 THEN
        RETURN 0;
    END IF;
    FOR lane IN
        WITH RECURSIVE each (queue, job_type, version) AS (
            (SELECT queue, job_type, payload_version FROM backstay.ready
             WHERE concurrency_key = key AND parked = 1
             ORDER BY queue, job_type, payload_version LIMIT 1)
            UNION ALL
            SELECT next.queue, next.job_type, next.payload_version FROM each CROSS JOIN LATERAL (
                SELECT queue, job_type, payload_version FROM backstay.ready
                WHERE concurrency_key = key AND parked = 1
                  AND (queue, job_type, payload_version) > (each.queue, each.job_type, each.version)
                ORDER BY queue, job_type, payload_version LIMIT 1) AS next
        )
        SELECT queue, job_type, version FROM each
    LOOP
        WITH next AS MATERIALIZED (
            SELECT ctid AS place_of, priority, scheduled_for, job_id FROM backstay.ready
            WHERE concurrency_key = key AND parked = 1 AND queue = lane.queue AND job_type = lane.job_type
              AND payload_version = lane.version
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT room
            FOR UPDATE SKIP LOCKED
        ), in_sight AS MATERIALIZED (
            SELECT priority, scheduled_for, job_id FROM backstay.ready
            WHERE concurrency_key = key AND parked = 0 AND queue = lane.queue AND job_type = lane.job_type
              AND payload_version = lane.version
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT room
        ), placed AS (
            SELECT place_of, row_number() OVER (ORDER BY priority DESC, scheduled_for, job_id) AS place FROM (
                SELECT place_of, priority, scheduled_for, job_id FROM next
                UNION ALL
                SELECT NULL, priority, scheduled_for, job_id FROM in_sight) AS together
        )
        UPDATE backstay.ready AS r SET parked = 0, line = r.line - 2
        WHERE r.ctid = ANY (ARRAY(SELECT place_of FROM placed WHERE place_of IS NOT NULL AND place <= room));
        GET DIAGNOSTICS changed = ROW_COUNT;
        unparked := unparked + changed;
    END LOOP;
    RETURN unparked;
END
$$;

-- The same for a rate key and rate: as many as may start now, 200 at most (see IN_SIGHT_MAX in limits.py). Keeps
-- when its parked jobs are to be checked again: never (2^62, see NO_TIME) while as many are claimable as may start.
CREATE FUNCTION backstay.unpark_rate(of_key text, starts integer, span bigint, at bigint) RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS
$$
DECLARE
    own_full bigint := coalesce((SELECT backstay.bucket(full_at, set_at, at) FROM backstay.rate
        WHERE rate_key = of_key AND rate_count = starts AND rate_micros = span), 0);
    -- What they draw from: another bucket, if another rate was set at run time for the key or the type of its name.
    now_starts integer := coalesce((SELECT l.rate_count FROM backstay.run_limit AS l WHERE l.of IN ('key', 'type')
        AND l.name = of_key AND l.rate_count IS NOT NULL ORDER BY l.of LIMIT 1), starts);
    now_span bigint := coalesce((SELECT l.rate_micros FROM backstay.run_limit AS l WHERE l.of IN ('key', 'type')
        AND l.name = of_key AND l.rate_count IS NOT NULL ORDER BY l.of LIMIT 1), span);
    bucket_full bigint := coalesce((SELECT backstay.bucket(full_at, set_at, at) FROM backstay.rate
        WHERE rate_key = of_key AND rate_count = now_starts AND rate_micros = now_span), 0);
    waits_for integer := coalesce((SELECT wanted FROM backstay.rate
        WHERE rate_key = of_key AND rate_count = now_starts AND rate_micros = now_span), 1);
    room integer := least(200, backstay.rate_room(now_starts, now_span, waits_for, bucket_full, at));
    lane record;
    changed integer;
    unparked integer := 0;
    is_any boolean := false;
BEGIN
    FOR lane IN
        WITH RECURSIVE each (queue, job_type, version) AS (
            (SELECT queue, job_type, payload_version FROM backstay.ready
             WHERE rate_key = of_key AND rate_count = starts AND rate_micros = span AND parked = 2
             ORDER BY queue, job_type, payload_version LIMIT 1)
            UNION ALL
            SELECT next.queue, next.job_type, next.payload_version FROM each CROSS JOIN LATERAL (
                SELECT queue, job_type, payload_version FROM backstay.ready
                WHERE rate_key = of_key AND rate_count = starts AND rate_micros = span AND parked = 2
                  AND (queue, job_type, payload_version) > (each.queue, each.job_type, each.version)
                ORDER BY queue, job_type, payload_version LIMIT 1) AS next
        )
        SELECT queue, job_type, version FROM each
    LOOP
        is_any := true;
        EXIT WHEN room <= 0;
        WITH next AS MATERIALIZED (
            SELECT ctid AS place_of, priority, scheduled_for, job_id FROM backstay.ready
            WHERE rate_key = of_key AND rate_count = starts AND rate_micros = span AND parked = 2
              AND queue = lane.queue AND job_type = lane.job_type AND payload_version = lane.version
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT room
            FOR UPDATE SKIP LOCKED
        ), in_sight AS MATERIALIZED (
            SELECT priority, scheduled_for, job_id FROM backstay.ready
            WHERE rate_key = of_key AND rate_count = starts AND rate_micros = span AND parked = 0
              AND queue = lane.queue AND job_type = lane.job_type AND payload_version = lane.version
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT room
        ), placed AS (
            SELECT place_of, row_number() OVER (ORDER BY priority DESC, scheduled_for, job_id) AS place FROM (
                SELECT place_of, priority, scheduled_for, job_id FROM next
                UNION ALL
                SELECT NULL, priority, scheduled_for, job_id FROM in_sight) AS together
        )
        UPDATE backstay.ready AS r SET parked = 0, line = r.line - 2
        WHERE r.ctid = ANY (ARRAY(SELECT place_of FROM placed WHERE place_of IS NOT NULL AND place <= room));
        GET DIAGNOSTICS changed = ROW_COUNT;
        unparked := unparked + changed;
    END LOOP;
    IF is_any AND EXISTS (SELECT FROM backstay.ready
            WHERE rate_key = of_key AND rate_count = starts AND rate_micros = span AND parked = 2) THEN
        INSERT INTO backstay.rate (rate_key, rate_count, rate_micros, full_at, due_at, set_at)
        VALUES (of_key, starts, span, own_full, CASE WHEN room > 0 THEN 4611686018427387904
            ELSE backstay.rate_due_at(now_starts, now_span, waits_for, bucket_full, at) END, at)
        ON CONFLICT (rate_key, rate_count, rate_micros) DO UPDATE SET full_at = excluded.full_at,
            due_at = excluded.due_at, set_at = excluded.set_at;
    ELSE
        UPDATE backstay.rate SET full_at = own_full, due_at = NULL, wanted = 1, set_at = at
        WHERE rate_key = of_key AND rate_count = starts AND rate_micros = span;
    END IF;
    RETURN unparked;
END
$$;

-- Hold the places of jobs whose rows in `job` the caller has locked: then they stay where they are. A claim or a
-- completion does not wait for the row in `job`, and may move a job on while this waits for its place: then it is looked
-- for again. It only moves on, so that this ends.
CREATE FUNCTION backstay.lock_places(ids uuid[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS
$$
DECLARE
    missing uuid[] := ids;
    held uuid[];
BEGIN
    WHILE cardinality(missing) > 0 LOOP
        WITH f AS (SELECT job_id FROM backstay.later WHERE job_id = ANY (missing) ORDER BY job_id FOR UPDATE),
        w AS (SELECT job_id FROM backstay.waiting WHERE job_id = ANY (missing) ORDER BY job_id FOR UPDATE),
        p AS (
            SELECT r.job_id FROM backstay.claimable AS j CROSS JOIN LATERAL (
                SELECT job_id FROM backstay.ready
                WHERE line = ANY (CASE j.line WHEN 2 THEN '{2,4}' WHEN 1 THEN '{1,3}' ELSE '{0}' END::smallint[])
                  AND queue = j.queue AND job_type = j.job_type AND priority = j.priority
                  AND scheduled_for = j.scheduled_for AND job_id = j.job_id
                FOR UPDATE) AS r
            WHERE j.job_id = ANY (missing)),
        g AS (SELECT job_id FROM backstay.running WHERE job_id = ANY (missing) ORDER BY job_id FOR UPDATE),
        e AS (SELECT job_id FROM backstay.ended WHERE job_id = ANY (missing) ORDER BY job_id FOR UPDATE)
        SELECT array_agg(job_id) INTO held FROM (
            SELECT * FROM f UNION ALL SELECT * FROM w UNION ALL SELECT * FROM p UNION ALL SELECT * FROM g
            UNION ALL SELECT * FROM e) AS every;
        missing := ARRAY(SELECT job_id FROM backstay.job WHERE job_id = ANY (missing) AND job_id <> ALL (coalesce(held, '{}')));
    END LOOP;
END
$$;

-- What children add to the counts of their parents, whose rows in `job` the caller has locked.
CREATE FUNCTION backstay.count_children(
    parents uuid[], coming integer[], still_open integer[], bad integer[], left_out integer[]) RETURNS void LANGUAGE sql AS
$$
    INSERT INTO backstay.detail AS d (job_id, children, open_children, failed_children, cancelled_children)
    SELECT * FROM unnest(parents, coming, still_open, bad, left_out) AS n (job_id, children, still_open, failed, cancelled)
    WHERE EXISTS (SELECT FROM backstay.job WHERE job_id = n.job_id)
    ON CONFLICT (job_id) DO UPDATE SET children = coalesce(d.children, 0) + excluded.children,
        open_children = coalesce(d.open_children, 0) + excluded.open_children,
        failed_children = coalesce(d.failed_children, 0) + excluded.failed_children,
        cancelled_children = coalesce(d.cancelled_children, 0) + excluded.cancelled_children
$$;

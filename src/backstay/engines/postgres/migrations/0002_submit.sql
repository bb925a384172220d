-- Submitting from SQL: with the same defaults, deduplication and options as from Python.

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

-- Jobs as Python hands them over, inside whatever transaction the caller has; the wake-up goes with its commit.
CREATE FUNCTION backstay.insert_jobs(jobs jsonb, client_now bigint, store_now bigint, notify boolean)
RETURNS jsonb LANGUAGE plpgsql AS
$$
DECLARE
    answers jsonb := '[]';
    job jsonb;
BEGIN
    IF jsonb_array_length(jobs) > 1 THEN
        PERFORM backstay.hold_for(jobs);
    END IF;
    FOR job IN SELECT value FROM jsonb_array_elements(jobs) LOOP
        answers := answers || backstay.insert_special(job, client_now, store_now);
    END LOOP;
    PERFORM backstay.count_children(parent, count(*)::integer,
        (count(*) FILTER (WHERE status NOT IN ('completed', 'failed', 'cancelled')))::integer,
        (count(*) FILTER (WHERE status = 'failed'))::integer, (count(*) FILTER (WHERE status = 'cancelled'))::integer)
    FROM (
        SELECT (each ->> 'parent_job_id')::uuid AS parent, each ->> 'status' AS status
        FROM jsonb_array_elements(answers) AS each
        WHERE NOT (each ->> 'existing')::boolean AND each ->> 'parent_job_id' IS NOT NULL
    ) AS children
    GROUP BY parent;
    IF notify THEN
        PERFORM pg_notify(backstay.channel(), 'sql ready due ended');
    END IF;
    RETURN answers;
END
$$;

-- The same for a caller's own transaction: a refusal is returned, and the transaction can continue.
CREATE FUNCTION backstay.insert_in(jobs jsonb, client_now bigint, store_now bigint, notify boolean)
RETURNS jsonb LANGUAGE plpgsql AS
$$
DECLARE
    said text;
BEGIN
    RETURN backstay.insert_jobs(jobs, client_now, store_now, notify);
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS said = PG_EXCEPTION_DETAIL;
    RETURN jsonb_build_object('sqlstate', SQLSTATE, 'message', SQLERRM, 'detail', said);
END
$$;

-- The channel of wake-ups is named after the schema, which this function is in.
CREATE FUNCTION backstay.channel() RETURNS text LANGUAGE plpgsql STABLE AS
$$
BEGIN
    RETURN 'backstay_' || (SELECT n.nspname FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
        WHERE p.oid = 'backstay.channel()'::regprocedure);
END
$$;

CREATE FUNCTION backstay.is_interval(given text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
$$
BEGIN
    RETURN given::interval IS NOT NULL;
EXCEPTION WHEN data_exception THEN
    RETURN false;
END
$$;

-- SELECT backstay.submit('embed', '{"text": "…"}', priority => 75, dedup_key => 'rule:7');
CREATE FUNCTION backstay.submit(
    job_type text,
    payload jsonb DEFAULT 'null',
    queue text DEFAULT NULL,
    priority integer DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    delay interval DEFAULT NULL,
    subject text DEFAULT NULL,
    tags text[] DEFAULT NULL,
    job_id uuid DEFAULT NULL,
    dedup_key text DEFAULT NULL,
    dedup_for text DEFAULT 'active', -- active, forever, or an interval
    dedup_conflict text DEFAULT 'return',
    content_hash text DEFAULT NULL,
    reuse text DEFAULT NULL, -- true, or an interval
    depends_on uuid[] DEFAULT NULL,
    on_dependency_failure text DEFAULT 'cancel',
    trigger_rule text DEFAULT 'all_success',
    parent uuid DEFAULT NULL,
    stage text DEFAULT NULL,
    max_attempts integer DEFAULT NULL,
    timeout interval DEFAULT NULL,
    created_by text DEFAULT NULL,
    concurrency_key text DEFAULT NULL,
    rate_key text DEFAULT NULL,
    fairness_key text DEFAULT NULL,
    fairness_weight integer DEFAULT 1,
    notify boolean DEFAULT true)
RETURNS uuid LANGUAGE plpgsql AS
$$
#variable_conflict use_variable
DECLARE
    at bigint := backstay.micros();
    known jsonb := (SELECT t.details::jsonb FROM backstay.job_type AS t WHERE t.job_type = submit.job_type);
    due bigint;
BEGIN
    IF job_type IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'job_type is NULL: give the job type';
    ELSIF known IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS004', MESSAGE = format(
            '%L was never announced here: open the app that has its handler once, or start its worker once', job_type);
    ELSIF payload IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'payload is NULL: leave it out, or give JSON';
    ELSIF run_at > now() + '3660 days' OR delay > '3660 days' OR run_at = '-infinity' OR delay < '0 s' THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            '%s: a job may be due within the next ten years', coalesce(run_at::text, delay::text));
    ELSIF queue !~ '^[A-Za-z0-9._:-]{1,128}$' THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            '%L cannot be a queue: use 1 to 128 of A-Z a-z 0-9 . _ : -', left(queue, 80));
    ELSIF greatest(length(subject), length(dedup_key), length(content_hash), length(concurrency_key), length(rate_key),
            length(fairness_key)) > 512 OR length(created_by) > 128 OR length(stage) > 200 THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE =
            'too long: subject, hash and keys have up to 512 characters, stage 200, created_by 128';
    ELSIF '' IN (subject, dedup_key, content_hash, concurrency_key, rate_key) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'subject, hash and keys must not be empty: leave out those you do not need';
    ELSIF array_ndims(tags) > 1 OR cardinality(tags) > 32 OR array_position(tags, NULL) IS NOT NULL
            OR EXISTS (SELECT 1 FROM unnest(tags) AS tag WHERE length(tag) NOT BETWEEN 1 AND 128) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'tags: use up to 32 strings of 1 to 128 characters';
    ELSIF octet_length(payload::text) > 262144 THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'the payload has %s bytes, over the limit of 262144: store the data elsewhere and submit a reference to it',
            octet_length(payload::text));
    ELSIF run_at IS NOT NULL AND delay IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'run_at and delay are mutually exclusive: give one';
    ELSIF concurrency_key IS NOT NULL AND known ->> 'concurrency_limit' IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('%s has no global_concurrency', job_type);
    ELSIF dedup_for <> 'active' AND dedup_key IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'dedup_for needs a dedup_key';
    ELSIF dedup_for NOT IN ('active', 'forever') AND NOT backstay.is_interval(dedup_for) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'dedup_for %L: use active, forever or an interval', dedup_for);
    ELSIF reuse NOT IN ('true', 'false') AND NOT backstay.is_interval(reuse) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('reuse %L: use true, false or an interval', reuse);
    ELSIF reuse IS NOT NULL AND content_hash IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'reuse needs a content_hash to compare by';
    ELSIF priority NOT BETWEEN 0 AND 100 THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('priority %s: use 0 to 100', priority);
    ELSIF max_attempts NOT BETWEEN 1 AND 1000 THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('max_attempts %s: use 1 to 1000', max_attempts);
    ELSIF timeout <= '0 s' OR timeout > '30 days' THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('timeout %s: use up to 30 days', timeout);
    ELSIF fairness_weight NOT BETWEEN 1 AND 1000 OR fairness_weight IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('fairness_weight %s: use 1 to 1000', fairness_weight);
    ELSIF on_dependency_failure NOT IN ('cancel', 'fail') OR on_dependency_failure IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'on_dependency_failure %L: use cancel or fail', on_dependency_failure);
    ELSIF trigger_rule NOT IN ('all_success', 'all_done', 'one_success', 'none_failed') OR trigger_rule IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'trigger_rule %L: use all_success, all_done, one_success or none_failed', trigger_rule);
    ELSIF trigger_rule <> 'all_success' AND coalesce(cardinality(depends_on), 0) = 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('trigger_rule %L needs depends_on', trigger_rule);
    ELSIF job_id = ANY (depends_on) OR parent = ANY (depends_on) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'depends_on names the job itself, or its parent';
    ELSIF dedup_conflict NOT IN ('return', 'error') OR dedup_conflict IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'dedup_conflict %L: use return or error', dedup_conflict);
    END IF;
    due := greatest(at, coalesce((extract(epoch FROM run_at) * 1000000)::bigint,
        at + (extract(epoch FROM delay) * 1000000)::bigint, at));
    RETURN (backstay.insert_jobs(jsonb_build_array(jsonb_strip_nulls(jsonb_build_object(
        'job_id', coalesce(job_id, backstay.new_id()),
        'own_id', job_id IS NOT NULL,
        'job_type', job_type,
        'queue', coalesce(queue, known ->> 'queue'),
        'priority', coalesce(priority, (known ->> 'priority')::integer),
        'payload', payload::text,
        'scheduled_for', due,
        'max_attempts', coalesce(max_attempts, (known ->> 'max_attempts')::integer),
        'timeout_micros', coalesce((extract(epoch FROM timeout) * 1000000)::bigint,
            (known ->> 'timeout_micros')::bigint),
        'subject', subject,
        'tags', to_jsonb(tags)::text,
        'created_by', created_by,
        'job_stage', stage,
        'parent_job_id', parent,
        'content_hash', content_hash,
        'reuse_since', CASE WHEN reuse IS NULL OR reuse = 'false' THEN NULL WHEN reuse = 'true' THEN 0
            ELSE at - (extract(epoch FROM reuse::interval) * 1000000)::bigint END,
        'concurrency_key', CASE WHEN known ->> 'concurrency_limit' IS NOT NULL THEN coalesce(concurrency_key, job_type) END,
        'concurrency_limit', (known ->> 'concurrency_limit')::integer,
        'on_dependency_failure', on_dependency_failure,
        'trigger_rule', trigger_rule,
        'payload_version', (known ->> 'version')::integer)
    || jsonb_build_object(
        'fairness_key', nullif(fairness_key, ''),
        'fairness_weight', fairness_weight,
        'rate_key', CASE WHEN known -> 'rate' ->> 'count' IS NOT NULL THEN coalesce(rate_key, job_type) END,
        'rate', known -> 'rate',
        'dedup_key', dedup_key,
        'dedup_until', CASE dedup_for WHEN 'active' THEN NULL WHEN 'forever' THEN 4611686018427387904
            ELSE at + (extract(epoch FROM dedup_for::interval) * 1000000)::bigint END,
        'dedup_conflict_is_error', dedup_conflict = 'error',
        'depends_on', coalesce(to_jsonb(depends_on), '[]')))), at, at, notify) -> 0 ->> 'job_id')::uuid;
END
$$;

-- Cancel every job of a subject that has not ended; how many. Maintenance releases the jobs that wait for them.
CREATE FUNCTION backstay.cancel_jobs(of_type text, of_subject text, by text DEFAULT 'sql') RETURNS integer
LANGUAGE plpgsql AS
$$
DECLARE
    at bigint := backstay.micros();
    cancelled integer := 0;
    each record;
BEGIN
    -- Parents first, as those do who complete their children.
    PERFORM 1 FROM backstay.job WHERE job_id IN (
        SELECT parent_job_id FROM backstay.job
        WHERE subject = of_subject AND job_type = of_type AND parent_job_id IS NOT NULL)
    ORDER BY job_id FOR NO KEY UPDATE;
    FOR each IN
        SELECT * FROM backstay.job
        WHERE subject = of_subject AND job_type = of_type
          AND status IN ('waiting', 'scheduled', 'pending', 'processing', 'retrying')
        ORDER BY job_id FOR UPDATE
    LOOP
        UPDATE backstay.job AS j SET status = 'cancelled', version = j.version + 1, updated_at = at, completed_at = at,
            lease_expires_at = NULL, claim_token = NULL, parked = false, rate_parked = false, unmet_dependencies = 0,
            awaits = NULL,
            history = backstay.trimmed(j.history, j.version) || E'\n' || backstay.event(
                j.version + 1, at, 'cancel', j.status, 'cancelled', j.attempt, by, NULL)
        WHERE j.seq = each.seq;
        IF each.status = 'pending' AND each.rate_key IS NOT NULL THEN
            -- It may have been the one in sight: then others take its place.
            PERFORM pg_advisory_xact_lock(hashtextextended('backstay rate ' || each.rate_key, 0));
            UPDATE backstay.rate SET due_at = at WHERE rate_key = each.rate_key AND due_at = 4611686018427387904;
        END IF;
        IF each.parent_job_id IS NOT NULL THEN
            PERFORM backstay.count_children(each.parent_job_id, 0, -1, 0, 1);
        END IF;
        IF each.awaited THEN
            INSERT INTO backstay.release_due (parent_id) VALUES (each.job_id) ON CONFLICT DO NOTHING;
        END IF;
        PERFORM backstay.count_jobs(at, each.job_type, each.queue, each.priority, 'cancelled', 1, 0, 0);
        cancelled := cancelled + 1;
    END LOOP;
    IF cancelled > 0 THEN
        PERFORM pg_notify(backstay.channel(), 'sql stopped ended due');
    END IF;
    RETURN cancelled;
END
$$;

-- Remove every job of a subject, whatever its state; how many. A run that is under way is told that its job is gone.
CREATE FUNCTION backstay.drop_jobs(of_type text, of_subject text, by text DEFAULT 'sql') RETURNS integer LANGUAGE plpgsql AS
$$
DECLARE
    dropped uuid[];
BEGIN
    PERFORM backstay.cancel_jobs(of_type, of_subject, by);
    WITH gone AS (
        -- Not out of a tree: a hole in it would keep its parent waiting.
        DELETE FROM backstay.job WHERE subject = of_subject AND job_type = of_type AND NOT awaited
            AND parent_job_id IS NULL AND children IS NULL
        RETURNING job_id
    )
    SELECT array_agg(job_id) INTO dropped FROM gone;
    DELETE FROM backstay.edge WHERE child_id = ANY (dropped);
    DELETE FROM backstay.step WHERE job_id = ANY (dropped);
    DELETE FROM backstay.dedup WHERE job_id = ANY (dropped);
    RETURN coalesce(cardinality(dropped), 0);
END
$$;

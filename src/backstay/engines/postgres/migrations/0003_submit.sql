-- Submitting jobs that are more than a row, from Python and from SQL: with the same defaults, deduplication and options.
-- Bounds in braces are those of limits.py: they are filled in when this file is read.

CREATE TYPE backstay.rate_of AS (count integer, micros bigint);
-- A job to store, as JSON has it: see NewJob in core/records.py.
CREATE TYPE backstay.coming AS (
    job_id uuid, job_type text, queue text, priority integer, payload text, scheduled_for bigint, max_attempts integer,
    timeout_micros bigint, subject text, tags text, created_by text, job_stage text, parent_job_id uuid,
    root_job_id uuid, content_hash text, concurrency_key text, concurrency_limit integer, on_dependency_failure text,
    payload_version integer, fairness_key text, fairness_weight integer, traceparent text, own_id boolean,
    dedup_key text, dedup_until bigint, dedup_conflict_is_error boolean, dedup_replaces boolean, debounce_micros bigint,
    expires_at bigint, depends_on uuid[], trigger_rule text,
    reuse_since bigint, rate_key text, rate backstay.rate_of, rate_cost integer, schedule text, tick_at bigint,
    admitted boolean, -- it came with a parent that was, so that no queue is too full for it
    promised boolean, -- its parent has ended on the strength of it; what it depended on and is gone since was no obstacle
    repeated boolean, -- an earlier try may have stored it: its own id is for us to find it by
    round integer -- 0, or more if it has to do with an earlier job of the same call
);
-- What was decided about it.
CREATE TYPE backstay.decided AS (
    place integer, found uuid, found_status text, root uuid, donor uuid, leader uuid, parents uuid[], active uuid[],
    breaker jsonb, -- the dependency that ends it, as core/event_details.py has it
    starts text, ends text
);

-- Everything that several jobs will wait for, in the order in which everyone does: names of what must be there once,
-- rows, names of keys. One by one, two who submit at the same time could wait for each other.
CREATE FUNCTION backstay.hold_for(jobs backstay.coming[], client_now bigint) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS
$$
DECLARE
    held uuid[];
    names bigint;
    contents integer := (
        SELECT count(DISTINCT (job_type, content_hash)) FROM unnest(jobs) WHERE reuse_since IS NOT NULL);
    earlier integer; -- contents that this transaction has locked before
    room bigint := current_setting('max_locks_per_transaction')::bigint
        * (current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint);
BEGIN
    -- The server's table of locks is for everyone: who fills it keeps others from working. Promised jobs come in parts
    -- that fit.
    IF cardinality(jobs) * 5 > room THEN
        SELECT count(DISTINCT job_id) FILTER (WHERE own_id AND NOT coalesce(repeated, false)) + count(DISTINCT dedup_key)
            + least(contents, {content_locks_max}) + count(DISTINCT concurrency_key) + count(DISTINCT rate_key)
        INTO names FROM unnest(jobs) WHERE NOT coalesce(promised, false);
        IF names > room THEN
            RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
                'these jobs have %s keys and ids of their own, and the server has room to lock %s: nothing was stored;'
                ' submit fewer at a time, or raise max_locks_per_transaction', names, room);
        END IF;
    END IF;
    -- A trigger submits row by row, perhaps thousands in a transaction. Beyond so many contents, one lock keeps such
    -- transactions apart; a job that is submitted by itself at the same moment may then do the same work once more.
    IF contents > 0 THEN
        earlier := coalesce(nullif(current_setting('backstay_locks.contents', true), ''), '0')::integer;
        PERFORM set_config('backstay_locks.contents', (earlier + contents)::text, true);
    END IF;
    PERFORM pg_advisory_xact_lock(lock) FROM (
        SELECT hashtextextended('backstay id ' || job_id, 0) AS lock FROM unnest(jobs)
            WHERE own_id AND NOT coalesce(repeated, false)
        UNION SELECT hashtextextended('backstay dedup ' || dedup_key, 0) FROM unnest(jobs) WHERE dedup_key IS NOT NULL
        UNION SELECT hashtextextended('backstay content ' || job_type || ' ' || content_hash, 0) FROM unnest(jobs)
            WHERE reuse_since IS NOT NULL AND earlier + contents <= {content_locks_max}
        UNION SELECT hashtextextended('backstay contents', 0) WHERE earlier + contents > {content_locks_max}
        ORDER BY lock) AS locks;
    PERFORM pg_advisory_xact_lock(lock) FROM (
        SELECT DISTINCT hashtextextended('backstay queue ' || q.name, 0) AS lock
        FROM unnest(jobs) AS j JOIN backstay.queue AS q ON q.name = j.queue
        WHERE q.max_pending IS NOT NULL AND NOT coalesce(j.admitted, false) AND j.scheduled_for <= client_now
        ORDER BY lock) AS locks;
    -- Parents, so that retention does not take the tree away from under a job.
    PERFORM 1 FROM backstay.job WHERE job_id = ANY (ARRAY(
        SELECT parent_job_id FROM unnest(jobs) WHERE parent_job_id IS NOT NULL))
    ORDER BY job_id FOR KEY SHARE;
    -- What they wait for: its end waits until they are there to be released by it, or it has ended before.
    WITH wanted AS MATERIALIZED (
        SELECT parent AS job_id FROM unnest(jobs) AS j, unnest(j.depends_on) AS parent
        UNION
        SELECT same.job_id FROM (
            SELECT DISTINCT content_hash, job_type FROM unnest(jobs) WHERE reuse_since IS NOT NULL) AS j
        CROSS JOIN LATERAL (
            SELECT job_id FROM backstay.job AS k WHERE content_hash = j.content_hash AND job_type = j.job_type
                AND NOT EXISTS (SELECT FROM backstay.ended WHERE job_id = k.job_id)) AS same
        UNION -- and what they take the place of
        SELECT d.job_id FROM unnest(jobs) AS j CROSS JOIN LATERAL (
            SELECT job_id FROM backstay.dedup WHERE dedup_key = j.dedup_key OFFSET 0) AS d
        WHERE j.dedup_replaces
    ), locked AS MATERIALIZED (
        SELECT job_id FROM backstay.job WHERE job_id = ANY (ARRAY(SELECT job_id FROM wanted)) ORDER BY job_id FOR UPDATE
    )
    SELECT array_agg(job_id) INTO held FROM locked;
    PERFORM backstay.lock_places(held);
    -- Transactions that start, end or unpark jobs of these keys lock their names too: what is counted stays true.
    PERFORM pg_advisory_xact_lock(lock) FROM (
        SELECT hashtextextended('backstay key ' || concurrency_key, 0) AS lock FROM unnest(jobs)
            WHERE concurrency_key IS NOT NULL
        UNION SELECT hashtextextended('backstay rate ' || rate_key, 0) FROM unnest(jobs) WHERE rate_key IS NOT NULL
        ORDER BY lock) AS locks;
END
$$;

-- Give a job that waits what a later submit with its dedup key brings, and return how it stands from now on: the same as
-- replace in core/lifecycle.py. NULL if it has begun. Its row in `job` and its place are locked.
CREATE FUNCTION backstay.replace_job(c backstay.coming, earlier uuid, client_now bigint, at bigint) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off AS
$$
DECLARE
    was record;
    due bigint := CASE WHEN c.scheduled_for > client_now THEN greatest(c.scheduled_for, at + 1)
        ELSE c.scheduled_for + at - client_now END;
    goes text;
    until bigint;
BEGIN
    SELECT s.job_type, s.status, s.attempt, s.failures, s.version, s.priority, s.scheduled_for, s.created_at,
        s.queue, s.awaited, s.parked, s.rate_key INTO was
    FROM backstay.standing AS s WHERE s.job_id = earlier;
    IF was.job_type <> c.job_type THEN
        RAISE EXCEPTION USING ERRCODE = 'BS001', MESSAGE = format(
            'dedup key %L belongs to job %s of type %s, and this is a %s: one cannot replace the other; use a key of its'
            ' own for each type', c.dedup_key, earlier, was.job_type, c.job_type);
    ELSIF was.attempt > 0 AND was.status <> 'retrying' THEN
        RETURN NULL;
    END IF;
    due := least(due, was.created_at + c.debounce_micros);
    goes := CASE WHEN was.status NOT IN ('scheduled', 'pending') THEN was.status WHEN due > at THEN 'scheduled'
        ELSE 'pending' END;
    due := CASE WHEN was.status = 'retrying' OR was.status = 'pending' AND goes = 'pending' THEN was.scheduled_for
        ELSE due END;
    until := CASE WHEN was.attempt = 0 THEN c.expires_at END;
    UPDATE backstay.job SET payload = c.payload, payload_version = coalesce(c.payload_version, 1) WHERE job_id = earlier;
    IF goes = was.status THEN
        UPDATE backstay.later SET scheduled_for = due, version = was.version + 1, expires_at = until WHERE job_id = earlier;
        UPDATE backstay.waiting SET scheduled_for = due, version = was.version + 1, expires_at = until
        WHERE job_id = earlier;
        UPDATE backstay.ready AS r SET version = was.version + 1, expires_at = until,
            payload_version = coalesce(c.payload_version, 1)
        FROM backstay.claimable AS j
        WHERE was.status = 'pending' AND j.job_id = earlier AND r.line IN (j.line, CASE WHEN j.line > 0 THEN j.line + 2 END)
          AND r.queue = j.queue AND r.job_type = j.job_type AND r.priority = j.priority
          AND r.scheduled_for = j.scheduled_for AND r.job_id = j.job_id;
    ELSE
        PERFORM backstay.leave_places(ARRAY[earlier]);
    END IF;
    IF due <> was.scheduled_for THEN
        INSERT INTO backstay.detail AS d (job_id, scheduled_for) VALUES (earlier, due)
        ON CONFLICT (job_id) DO UPDATE SET scheduled_for = excluded.scheduled_for;
    END IF;
    IF goes <> was.status AND goes = 'scheduled' THEN
        INSERT INTO backstay.later (job_id, queue, job_type, priority, scheduled_for, attempt, failures, version, awaited,
            status, expires_at)
        VALUES (earlier, was.queue, was.job_type, was.priority, due, was.attempt, was.failures, was.version + 1,
            was.awaited, 'scheduled', until);
        -- It has left the line without a start: another of its rate key may be next. 2^62: see unpark_rate.
        UPDATE backstay.rate SET due_at = at, wanted = 1
        WHERE rate_key = was.rate_key AND (due_at = 4611686018427387904 OR wanted > 1);
    ELSIF goes <> was.status THEN
        INSERT INTO backstay.ready (job_id, queue, job_type, priority, scheduled_for, payload_version, line, suspicion,
            findable, child, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros, rate_cost,
            fairness_key, fairness_weight, attempt, failures, version, awaited, expires_at)
        SELECT j.job_id, j.queue, j.job_type, j.priority, j.scheduled_for, j.payload_version, j.line, j.suspicion,
            j.findable, j.child, j.concurrency_key, j.concurrency_limit, j.rate_key, j.rate_count, j.rate_micros,
            j.rate_cost, j.fairness_key, j.fairness_weight, was.attempt, was.failures, was.version + 1, was.awaited, until
        FROM backstay.claimable AS j WHERE j.job_id = earlier;
    END IF;
    IF goes <> was.status THEN
        INSERT INTO backstay.tally AS t (shard, job_type, queue, priority, status, count)
        VALUES (pg_backend_pid() % 64, was.job_type, was.queue, was.priority, 'scheduled',
            CASE goes WHEN 'scheduled' THEN 1 ELSE -1 END)
        ON CONFLICT (shard, job_type, queue, priority, status) DO UPDATE SET count = t.count + excluded.count;
    END IF;
    INSERT INTO backstay.event (job_id, version, attempt, at, event, source, target, by, details)
    VALUES (earlier, was.version + 1, was.attempt, at, 'replace', was.status, goes, c.created_by,
        CASE WHEN due <> was.scheduled_for THEN jsonb_build_object('kind', 'due_time', 'scheduled_for',
            to_char(backstay.instant(due) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) END);
    DELETE FROM backstay.event WHERE job_id = earlier
        AND version BETWEEN {history_head} + 1 AND was.version + 1 - {history_tail};
    RETURN goes;
END
$$;

-- Store jobs of which none has to do with another of them, as sets; what has to be held is. Answers in their order.
-- Without sequential scans: its plans are kept, and may have been made while the tables were empty.
CREATE FUNCTION backstay.insert_round(jobs backstay.coming[], client_now bigint, store_now bigint)
RETURNS backstay.decided[] LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS
$$
DECLARE
    at bigint := coalesce(store_now, backstay.micros());
    v backstay.decided[];
    leaders uuid[];
    wrong record;
    each record;
BEGIN
    -- Which of them are here already: by their own id, or by a key that stands for a job.
    v := ARRAY(
        SELECT ROW(c.ordinality, CASE WHEN own.status IS NOT NULL THEN c.job_id WHEN guard.holds THEN guard.job_id END,
            CASE WHEN own.status IS NOT NULL THEN own.status WHEN guard.holds THEN guard.status END,
            NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::backstay.decided
        FROM unnest(jobs) WITH ORDINALITY AS c
        LEFT JOIN LATERAL (SELECT backstay.status_of(c.job_id) AS status WHERE c.own_id) AS own ON true
        LEFT JOIN LATERAL (
            SELECT g.job_id, g.status, g.status IS NOT NULL AND CASE WHEN g.until IS NULL
                THEN g.status NOT IN ('completed', 'failed', 'cancelled') ELSE at < g.until END AS holds
            FROM (SELECT d.job_id, d.until, backstay.status_of(d.job_id) AS status FROM backstay.dedup AS d
                WHERE d.dedup_key = c.dedup_key OFFSET 0) AS g) AS guard ON c.dedup_key IS NOT NULL
        ORDER BY c.ordinality);
    -- The archive has no payload to compare: the repeat is accepted.
    SELECT c.found, c.dedup_key AS key INTO wrong FROM ROWS FROM (unnest(v), unnest(jobs)) AS c
    WHERE c.found IS NOT NULL AND c.found <> c.job_id AND c.dedup_conflict_is_error AND NOT coalesce(c.promised, false)
      AND NOT backstay.same_json((SELECT payload FROM backstay.job WHERE job_id = c.found), c.payload)
    ORDER BY c.place LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'BS001', MESSAGE = format(
            'dedup key %L belongs to job %s, whose payload is different', wrong.key, wrong.found);
    END IF;

    -- What takes the place of a job that waits. One that has begun stays as it is: then the new one is another job.
    IF EXISTS (SELECT FROM unnest(jobs) WHERE dedup_replaces) THEN
        v := ARRAY(
            SELECT ROW(c.place, CASE WHEN after.status IS NOT NULL THEN c.found END, after.status,
                NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::backstay.decided
            FROM ROWS FROM (unnest(v), unnest(jobs)) AS c
            CROSS JOIN LATERAL (
                SELECT CASE WHEN c.dedup_replaces AND c.found <> c.job_id
                        AND c.found_status NOT IN ('completed', 'failed', 'cancelled')
                    THEN backstay.replace_job(jobs[c.place], c.found, client_now, at) ELSE c.found_status END AS status
                OFFSET 0) AS after
            ORDER BY c.place);
    END IF;

    -- Their trees, and results that they can have: of jobs that are held from then on, so that they keep their results,
    -- and their ends wait. One that was run again, removed or completed before it was held is not taken: look again.
    LOOP
        v := ARRAY(
            SELECT ROW(c.place, c.found, c.found_status, coalesce(up.root, c.root_job_id), r.donor,
                -- It waits for that one anyway, or may start before it: on its own terms.
                CASE WHEN r.leader = ANY (c.depends_on) OR coalesce(c.trigger_rule, 'all_success') <> 'all_success'
                    AND cardinality(c.depends_on) > 0 THEN NULL ELSE r.leader END,
                NULL, NULL, NULL, NULL, NULL)::backstay.decided
            FROM ROWS FROM (unnest(v), unnest(jobs)) AS c
            LEFT JOIN LATERAL (
                SELECT coalesce(root_job_id, job_id) AS root FROM backstay.job WHERE job_id = c.parent_job_id) AS up ON true
            LEFT JOIN LATERAL (
                SELECT one.donor, CASE WHEN one.donor IS NULL THEN (
                    SELECT k.job_id FROM backstay.job AS k
                    WHERE k.content_hash = c.content_hash AND k.job_type = c.job_type
                      AND NOT EXISTS (SELECT FROM backstay.ended WHERE job_id = k.job_id)
                      AND NOT EXISTS (SELECT FROM backstay.detail WHERE job_id = k.job_id AND joins IS NOT NULL)
                    ORDER BY k.created_at, k.job_id LIMIT 1) END AS leader
                FROM (SELECT backstay.reusable(c.job_type, c.content_hash, c.reuse_since) AS donor OFFSET 0) AS one
            ) AS r ON c.found IS NULL AND c.reuse_since IS NOT NULL
            ORDER BY c.place);
        PERFORM 1 FROM backstay.job WHERE job_id = ANY (ARRAY(SELECT donor FROM unnest(v) WHERE donor IS NOT NULL))
        ORDER BY job_id FOR SHARE;
        leaders := ARRAY(SELECT DISTINCT leader FROM unnest(v) WHERE leader IS NOT NULL);
        IF cardinality(leaders) > 0 THEN
            PERFORM 1 FROM backstay.job WHERE job_id = ANY (leaders) ORDER BY job_id FOR UPDATE;
            PERFORM backstay.lock_places(leaders);
        END IF;
        EXIT WHEN NOT EXISTS (SELECT FROM unnest(v) AS d
            WHERE (d.donor IS NOT NULL
                    AND NOT EXISTS (SELECT FROM backstay.ended WHERE job_id = d.donor AND (status || '') = 'completed'))
                OR (d.leader IS NOT NULL AND (EXISTS (SELECT FROM backstay.ended WHERE job_id = d.leader)
                    OR NOT EXISTS (SELECT FROM backstay.job WHERE job_id = d.leader))));
    END LOOP;
    SELECT c.parent_job_id AS id INTO wrong FROM ROWS FROM (unnest(v), unnest(jobs)) AS c
    WHERE c.found IS NULL AND c.root IS NULL AND c.parent_job_id IS NOT NULL ORDER BY c.place LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'BS002', MESSAGE = format(
            'no job %s to be the parent, or it was archived: submit it first; nothing was stored', wrong.id);
    END IF;

    -- How those stand that they wait for, and so how they begin. One that is completed at once waits for no other job;
    -- if it is retried manually, it runs by itself.
    IF EXISTS (SELECT FROM ROWS FROM (unnest(v), unnest(jobs)) AS c
            WHERE c.found IS NULL AND (c.leader IS NOT NULL OR cardinality(c.depends_on) > 0)) THEN
        SELECT x.parent INTO wrong FROM (
            SELECT c.place, parent FROM ROWS FROM (unnest(v), unnest(jobs)) AS c, unnest(c.depends_on) AS parent
            WHERE c.found IS NULL AND NOT coalesce(c.promised, false)) AS x
        WHERE x.parent = ANY (ARRAY(
            SELECT p.id FROM (SELECT DISTINCT parent AS id FROM unnest(jobs) AS c, unnest(c.depends_on) AS parent) AS p
            WHERE backstay.status_of(p.id) IS NULL))
        ORDER BY x.place LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'BS002', MESSAGE = format(
                'no job %s to depend on: submit it first; nothing was stored', wrong.parent);
        END IF;
        v := ARRAY(
            WITH wanted AS MATERIALIZED (
                SELECT DISTINCT c.place, parent
                FROM ROWS FROM (unnest(v), unnest(jobs)) AS c, unnest(c.depends_on || c.leader) AS parent
                WHERE c.found IS NULL AND parent IS NOT NULL
            ), standing AS MATERIALIZED (
                SELECT parent, coalesce(backstay.status_of(parent), 'completed') AS status
                FROM (SELECT DISTINCT parent FROM wanted) AS every
            ), sums AS MATERIALIZED (
                SELECT w.place, array_agg(w.parent) AS parents,
                    array_agg(w.parent) FILTER (WHERE s.status NOT IN ('completed', 'failed', 'cancelled')) AS active,
                    count(*) FILTER (WHERE s.status = 'completed')::integer AS completed,
                    count(*) FILTER (WHERE s.status = 'failed')::integer AS failed,
                    count(*) FILTER (WHERE s.status = 'cancelled')::integer AS cancelled,
                    min(w.parent::text) FILTER (WHERE s.status = 'failed') AS a_failed,
                    min(w.parent::text) FILTER (WHERE s.status = 'cancelled') AS a_cancelled,
                    min(w.parent::text) FILTER (WHERE s.status = 'completed') AS a_completed
                FROM wanted AS w JOIN standing AS s ON s.parent = w.parent
                GROUP BY w.place
            )
            SELECT ROW(c.place, c.found, c.found_status, c.root, c.donor, c.leader, s.parents, s.active,
                CASE WHEN c.trigger_rule = 'one_failed' AND s.a_completed IS NOT NULL
                        THEN jsonb_build_object('kind', 'dependency', 'job_id', s.a_completed, 'outcome', 'completed')
                    WHEN s.a_failed IS NOT NULL
                        THEN jsonb_build_object('kind', 'dependency', 'job_id', s.a_failed, 'outcome', 'failed')
                    WHEN s.a_cancelled IS NOT NULL AND c.trigger_rule IS DISTINCT FROM 'none_failed'
                        THEN jsonb_build_object('kind', 'dependency', 'job_id', s.a_cancelled, 'outcome', 'cancelled')
                END,
                backstay.began(coalesce(c.trigger_rule, 'all_success'), coalesce(s.completed, 0), coalesce(s.failed, 0),
                    coalesce(s.cancelled, 0), coalesce(cardinality(s.active), 0), c.on_dependency_failure,
                    c.scheduled_for > client_now), NULL)::backstay.decided
            FROM ROWS FROM (unnest(v), unnest(jobs)) AS c LEFT JOIN sums AS s ON s.place = c.place
            ORDER BY c.place);
    END IF;
    v := ARRAY(
        SELECT ROW(c.place, c.found, c.found_status, c.root, c.donor, c.leader, c.parents, c.active, c.breaker,
            CASE WHEN c.found IS NOT NULL THEN NULL WHEN c.donor IS NOT NULL THEN 'completed'
                WHEN c.starts IN ('failed', 'cancelled') THEN 'waiting'
                ELSE coalesce(c.starts, CASE WHEN c.scheduled_for > client_now THEN 'scheduled' ELSE 'pending' END) END,
            CASE WHEN c.found IS NULL AND c.donor IS NULL AND c.starts IN ('failed', 'cancelled') THEN c.starts END
            )::backstay.decided
        FROM ROWS FROM (unnest(v), unnest(jobs)) AS c ORDER BY c.place);

    PERFORM backstay.refuse_over_limit(queue, coming) FROM (
        SELECT c.queue, count(*) AS coming FROM ROWS FROM (unnest(v), unnest(jobs)) AS c
        WHERE c.starts = 'pending' AND NOT coalesce(c.admitted, false) GROUP BY 1 ORDER BY 1) AS due
    WHERE EXISTS (SELECT FROM backstay.queue WHERE max_pending IS NOT NULL);
    at := coalesce(store_now, backstay.micros());

    WITH n AS MATERIALIZED (
        SELECT c.*, coalesce(c.payload_version, 1) AS written_as,
            (c.rate).count AS rate_count, (c.rate).micros AS rate_micros,
            CASE WHEN c.scheduled_for > client_now THEN greatest(c.scheduled_for, at + 1)
                ELSE c.scheduled_for + at - client_now END AS due
        FROM ROWS FROM (unnest(v), unnest(jobs)) AS c
        WHERE c.found IS NULL
    ), facts AS (
        INSERT INTO backstay.job (job_id, job_type, queue, priority, payload, scheduled_for, max_attempts, timeout_micros,
            subject, tags, created_by, job_stage, parent_job_id, root_job_id, content_hash, concurrency_key,
            concurrency_limit, on_dependency_failure, payload_version, fairness_key, fairness_weight, rate_key,
            rate_count, rate_micros, rate_cost, schedule, tick_at, traceparent, trigger_rule, dedup_key, created_at,
            arrival)
        SELECT job_id, job_type, queue, priority, payload, due, max_attempts, timeout_micros, subject, tags, created_by,
            job_stage, parent_job_id, root, content_hash, concurrency_key, concurrency_limit,
            nullif(on_dependency_failure, 'cancel'), written_as, fairness_key, nullif(fairness_weight, 1), rate_key,
            rate_count, rate_micros, nullif(rate_cost, 1), schedule, tick_at, traceparent,
            nullif(trigger_rule, 'all_success'), dedup_key, at,
            backstay.arrival(job_id, at, parent_job_id IS NOT NULL, place)
        FROM n
    ), pending AS (
        -- Those with a key are let in below.
        INSERT INTO backstay.ready (job_id, queue, job_type, priority, scheduled_for, payload_version, attempt, failures,
            version, line, suspicion, parked, awaited, findable, child, concurrency_key, concurrency_limit, rate_key,
            rate_count, rate_micros, rate_cost, fairness_key, fairness_weight, expires_at)
        SELECT job_id, queue, job_type, priority, due, written_as, 0, 0, 1,
            CASE WHEN fairness_key IS NOT NULL THEN 2 WHEN concurrency_key IS NOT NULL OR rate_key IS NOT NULL THEN 1
                ELSE 0 END + CASE WHEN parked > 0 THEN 2 ELSE 0 END, 0, parked, false, content_hash IS NOT NULL,
            parent_job_id IS NOT NULL, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros,
            rate_cost, fairness_key, nullif(fairness_weight, 1), expires_at
        FROM n CROSS JOIN LATERAL (
            SELECT CASE WHEN concurrency_key IS NOT NULL AND concurrency_limit IS NOT NULL THEN 1
                WHEN rate_key IS NOT NULL AND rate_count IS NOT NULL THEN 2 ELSE 0 END AS parked) AS k
        WHERE starts = 'pending'
    ), scheduled AS (
        INSERT INTO backstay.later (job_id, queue, job_type, priority, scheduled_for, attempt, failures, version, awaited,
            status, expires_at)
        SELECT job_id, queue, job_type, priority, due, 0, 0, 1, false, 'scheduled', expires_at FROM n
        WHERE starts = 'scheduled'
    ), waits AS (
        INSERT INTO backstay.waiting (job_id, queue, job_type, priority, scheduled_for, attempt, failures, version,
            awaited, unmet, expires_at)
        SELECT job_id, queue, job_type, priority, due, 0, 0, 1, false, cardinality(active), expires_at FROM n
        WHERE starts = 'waiting' AND ends IS NULL
    ), over AS (
        INSERT INTO backstay.ended (job_id, completed_at, attempt, failures, version, status, result, result_artifact,
            job_type, error_type, content_hash, subject)
        SELECT n.job_id, at, 0, 0, CASE WHEN ends IS NULL THEN 1 ELSE 2 END, coalesce(ends, 'completed'), e.result,
            e.result_artifact,
            CASE WHEN n.content_hash IS NOT NULL OR d.result_tables IS NOT NULL OR ends = 'failed' THEN n.job_type END,
            CASE ends WHEN 'failed' THEN 'DependencyFailed' END, n.content_hash,
            CASE WHEN d.result_tables IS NOT NULL THEN n.subject END
        FROM n LEFT JOIN LATERAL (SELECT * FROM backstay.ended WHERE job_id = n.donor OFFSET 0) AS e ON true
        LEFT JOIN LATERAL (SELECT * FROM backstay.detail WHERE job_id = n.donor OFFSET 0) AS d ON true
        WHERE starts = 'completed' OR ends IS NOT NULL
    ), details AS (
        INSERT INTO backstay.detail (job_id, joins, reused_from, metrics, result_tables, rows_of, rows_attempt, stage,
            last_error, error_type)
        SELECT n.job_id, CASE WHEN ends IS NULL THEN leader END, coalesce(d.reused_from, donor), d.metrics, d.result_tables,
            CASE WHEN d.result_tables IS NOT NULL THEN coalesce(d.rows_of, donor) END,
            CASE WHEN d.result_tables IS NOT NULL THEN coalesce(d.rows_attempt, e.attempt) END,
            CASE ends WHEN 'failed' THEN 'error' END,
            CASE ends WHEN 'failed'
                THEN format('DependencyFailed: %s %s', breaker ->> 'job_id', breaker ->> 'outcome') END,
            CASE ends WHEN 'failed' THEN 'DependencyFailed' END
        FROM n LEFT JOIN LATERAL (SELECT * FROM backstay.detail WHERE job_id = n.donor OFFSET 0) AS d ON true
        LEFT JOIN LATERAL (SELECT attempt FROM backstay.ended WHERE job_id = n.donor OFFSET 0) AS e ON true
        WHERE leader IS NOT NULL OR donor IS NOT NULL OR ends = 'failed'
    ), events AS (
        INSERT INTO backstay.event (job_id, version, attempt, at, event, source, target, by, details)
        SELECT job_id, 1, 0, at, CASE WHEN donor IS NULL THEN 'submit' ELSE 'reuse' END, NULL, starts, created_by, NULL
        FROM n WHERE starts IN ('waiting', 'completed')
        UNION ALL
        SELECT job_id, 2, 0, at, 'release', 'waiting', ends, NULL, breaker FROM n WHERE ends IS NOT NULL
    ), edges AS (
        INSERT INTO backstay.edge (parent_id, child_id, met, joined)
        SELECT p, job_id, active IS NULL OR p <> ALL (active), coalesce(p = leader, false)
        FROM n CROSS JOIN LATERAL unnest(parents) AS p
    ), guards AS (
        INSERT INTO backstay.dedup (dedup_key, job_id, until) SELECT dedup_key, job_id, dedup_until FROM n
        WHERE dedup_key IS NOT NULL
        ON CONFLICT (dedup_key) DO UPDATE SET job_id = excluded.job_id, until = excluded.until
    ), tallied AS (
        INSERT INTO backstay.tally AS t (shard, job_type, queue, priority, status, count)
        SELECT pg_backend_pid() % 64, job_type, queue, priority, coalesce(ends, starts) AS status, count(*) FROM n
        WHERE coalesce(ends, starts) <> 'pending'
        GROUP BY job_type, queue, priority, coalesce(ends, starts)
        ORDER BY job_type, queue, priority, status
        ON CONFLICT (shard, job_type, queue, priority, status) DO UPDATE SET count = t.count + excluded.count
    ), came AS (
        INSERT INTO backstay.arrived AS a (minute, job_type, queue, priority, shard, count)
        SELECT at - at % 60000000, job_type, queue, priority, pg_backend_pid() % 64, count(*) FROM n
        GROUP BY job_type, queue, priority
        ORDER BY job_type, queue, priority
        ON CONFLICT (minute, job_type, queue, priority, shard) DO UPDATE SET count = a.count + excluded.count
    )
    INSERT INTO backstay.counter AS c
        (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros, waited_micros)
    SELECT at - at % 60000000, job_type, queue, priority, outcome, pg_backend_pid() % 64, 0, count(*), sum(ran), 0
    FROM (
        SELECT job_type, queue, priority, coalesce(ends, 'completed') AS outcome, 0 AS ran FROM n WHERE donor IS NOT NULL OR ends IS NOT NULL
        UNION ALL
        SELECT job_type, queue, priority, 'reused', backstay.took(coalesce(
            (SELECT reused_from FROM backstay.detail WHERE job_id = donor), donor)) FROM n WHERE donor IS NOT NULL
    ) AS every
    GROUP BY job_type, queue, priority, outcome
    ORDER BY job_type, queue, priority, outcome
    ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count,
        ran_micros = c.ran_micros + excluded.ran_micros;

    PERFORM backstay.mark_awaited(ARRAY(SELECT DISTINCT p FROM unnest(v) AS d, unnest(d.active) AS p));
    FOR each IN
        SELECT DISTINCT c.concurrency_key AS key, c.concurrency_limit AS key_limit
        FROM ROWS FROM (unnest(v), unnest(jobs)) AS c
        WHERE c.starts = 'pending' AND c.concurrency_key IS NOT NULL AND c.concurrency_limit IS NOT NULL
    LOOP
        PERFORM backstay.unpark_key(each.key, each.key_limit);
    END LOOP;
    FOR each IN
        SELECT DISTINCT c.rate_key AS key, (c.rate).count AS starts, (c.rate).micros AS span
        FROM ROWS FROM (unnest(v), unnest(jobs)) AS c
        WHERE c.starts = 'pending' AND c.rate_key IS NOT NULL AND (c.rate).count IS NOT NULL
    LOOP
        PERFORM backstay.unpark_rate(each.key, each.starts, each.span, at);
    END LOOP;
    RETURN v;
END
$$;

-- Jobs have others that wait on them from now on; their rows in `job` and their places are locked.
CREATE FUNCTION backstay.mark_awaited(ids uuid[]) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS
$$
BEGIN
    IF cardinality(ids) = 0 THEN
        RETURN;
    END IF;
    UPDATE backstay.running SET awaited = true WHERE job_id = ANY (ids) AND NOT awaited;
    UPDATE backstay.later SET awaited = true WHERE job_id = ANY (ids) AND NOT awaited;
    UPDATE backstay.waiting SET awaited = true WHERE job_id = ANY (ids) AND NOT awaited;
    UPDATE backstay.ready AS r SET awaited = true
    FROM backstay.claimable AS j
    WHERE j.job_id = ANY (ids) AND r.line IN (j.line, CASE WHEN j.line > 0 THEN j.line + 2 END)
      AND r.queue = j.queue AND r.job_type = j.job_type AND r.priority = j.priority
      AND r.scheduled_for = j.scheduled_for AND r.job_id = j.job_id AND NOT r.awaited;
END
$$;

-- Jobs as Python hands them over, inside whatever transaction the caller has, which gets the wake-up with its commit if
-- it wants one. Answers, in order:
-- {"job_id": …, "status": …, "existing": …, "reused_from": …, "rate_parked": …, "parent_job_id": …}.
-- `terms` are "admitted" and "promised" for all of them. Without `counting`, the caller counts children with their parents.
CREATE FUNCTION backstay.insert_jobs(
    new jsonb, client_now bigint, store_now bigint, notify boolean, terms jsonb DEFAULT '{}', counting boolean DEFAULT true)
RETURNS jsonb LANGUAGE plpgsql AS
$$
DECLARE
    jobs backstay.coming[] := ARRAY(
        SELECT jsonb_populate_record(c, terms) FROM jsonb_populate_recordset(NULL::backstay.coming, new) AS c);
    answers jsonb := '[]';
    these integer;
    numbers integer[];
    part backstay.coming[];
    v backstay.decided[];
BEGIN
    PERFORM backstay.hold_for(jobs, client_now);
    FOR these IN SELECT DISTINCT coalesce(round, 0) AS n FROM unnest(jobs) ORDER BY n LOOP
        SELECT array_agg(c ORDER BY i), array_agg(i::integer ORDER BY i) INTO part, numbers
        FROM (SELECT jobs[i] AS c, i FROM generate_subscripts(jobs, 1) AS i) AS every
        WHERE coalesce((c).round, 0) = these;
        v := backstay.insert_round(part, client_now, store_now);
        answers := answers || coalesce((
            SELECT jsonb_agg(jsonb_build_object(
                'place', numbers[c.place],
                'job_id', coalesce(c.found, c.job_id),
                'status', coalesce(c.found_status, c.ends, c.starts),
                'existing', c.found IS NOT NULL,
                'reused_from', CASE WHEN c.donor IS NOT NULL THEN (
                    SELECT reused_from FROM backstay.detail WHERE job_id = c.job_id) END,
                'rate_parked', c.starts = 'pending' AND c.rate_key IS NOT NULL,
                'parent_job_id', c.parent_job_id))
            FROM ROWS FROM (unnest(v), unnest(part)) AS c), '[]');
    END LOOP;
    IF counting THEN
        PERFORM backstay.add_children(answers);
    END IF;
    IF notify THEN
        PERFORM pg_notify(backstay.channel(), 'sql ready due ended');
    END IF;
    RETURN (SELECT jsonb_agg(each ORDER BY (each ->> 'place')::integer) FROM jsonb_array_elements(answers) AS each);
END
$$;

-- Count children that came from SQL with their parents.
CREATE FUNCTION backstay.add_children(answers jsonb) RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
    IF NOT EXISTS (SELECT FROM jsonb_array_elements(answers) AS each
            WHERE NOT (each ->> 'existing')::boolean AND each ->> 'parent_job_id' IS NOT NULL) THEN
        RETURN;
    END IF;
    PERFORM backstay.children_changed(array_agg(parent), array_agg(coming), array_agg(still_open), array_agg(bad),
        array_agg(left_out))
    FROM (
        SELECT (each ->> 'parent_job_id')::uuid AS parent, count(*)::integer AS coming,
            (count(*) FILTER (WHERE each ->> 'status' NOT IN ('completed', 'failed', 'cancelled')))::integer AS still_open,
            (count(*) FILTER (WHERE each ->> 'status' = 'failed'))::integer AS bad,
            (count(*) FILTER (WHERE each ->> 'status' = 'cancelled'))::integer AS left_out
        FROM jsonb_array_elements(answers) AS each
        WHERE NOT (each ->> 'existing')::boolean AND each ->> 'parent_job_id' IS NOT NULL
        GROUP BY 1 ORDER BY 1
    ) AS sums;
END
$$;

-- Children were submitted or ended by SQL. Maintenance decides whether a parent that waited for the last of them resumes.
CREATE FUNCTION backstay.children_changed(
    parents uuid[], coming integer[], still_open integer[], bad integer[], left_out integer[]) RETURNS void
LANGUAGE plpgsql AS
$$
BEGIN
    PERFORM 1 FROM backstay.job WHERE job_id = ANY (parents) ORDER BY job_id FOR NO KEY UPDATE;
    PERFORM backstay.count_children(parents, coming, still_open, bad, left_out);
    INSERT INTO backstay.join_due (job_id)
    SELECT w.job_id FROM backstay.waiting AS w JOIN backstay.detail AS d ON d.job_id = w.job_id
    WHERE w.job_id = ANY (parents) AND w.awaits IS NOT NULL AND d.open_children = 0
    ON CONFLICT DO NOTHING;
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

CREATE FUNCTION backstay.is_interval(given text) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
$$
BEGIN
    RETURN given::interval IS NOT NULL;
EXCEPTION WHEN data_exception THEN
    RETURN false;
END
$$;

-- What a template makes of a payload: see core/derivation.py, which does the same. NULL where a field is missing or null.
CREATE FUNCTION backstay.derived(name text, template jsonb, payload jsonb) RETURNS text LANGUAGE plpgsql IMMUTABLE AS
$$
DECLARE
    part jsonb;
    value jsonb;
    word text;
    found text := '';
BEGIN
    FOR part IN SELECT * FROM jsonb_array_elements(template) LOOP
        IF part -> 'path' IS NULL THEN
            found := found || (part ->> 'text');
            CONTINUE;
        END IF;
        value := backstay.field(part, name, payload);
        IF value IS NULL THEN
            RETURN NULL;
        END IF;
        word := value #>> '{}';
        found := found || CASE part ->> 'hash' WHEN 'md5' THEN md5(word)
            WHEN 'sha256' THEN encode(sha256(convert_to(word, 'UTF8')), 'hex') ELSE word END;
    END LOOP;
    RETURN nullif(found, '');
END
$$;

-- The value of a field that something is derived from; its default where the payload has no such field.
CREATE FUNCTION backstay.field(part jsonb, name text, payload jsonb) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS
$$
DECLARE
    path text[] := ARRAY(SELECT jsonb_array_elements_text(part -> 'path'));
    value jsonb := coalesce(payload #> path, part -> 'default');
BEGIN
    IF jsonb_typeof(value) = 'null' THEN
        RETURN NULL;
    ELSIF jsonb_typeof(value) IN ('object', 'array') OR (jsonb_typeof(value) = 'number' AND value::text !~ '^-?[0-9]+$') THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            '%s is derived from %s, which has to be a string, an integer or a boolean, not %s', name,
            array_to_string(path, '.'), jsonb_typeof(value));
    END IF;
    RETURN value;
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
    dedup text DEFAULT NULL, -- return, error or replace
    debounce_max interval DEFAULT NULL,
    expires interval DEFAULT NULL,
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
    rate_cost integer DEFAULT 1,
    fairness_key text DEFAULT NULL,
    fairness_weight integer DEFAULT 1,
    notify boolean DEFAULT true)
RETURNS uuid LANGUAGE plpgsql AS
$$
#variable_conflict use_variable
DECLARE
    at bigint := backstay.micros();
    known jsonb := (SELECT t.details::jsonb FROM backstay.job_type AS t WHERE t.job_type = submit.job_type);
    derives jsonb := nullif(known -> 'derivation', 'null');
    kept bigint; -- how long a derived dedup key stays taken
    due bigint;
BEGIN
    IF derives IS NOT NULL THEN
        IF EXISTS (SELECT FROM jsonb_array_elements_text(derives -> 'in_code') AS coded
                WHERE CASE coded WHEN 'subject' THEN subject WHEN 'content_hash' THEN content_hash
                    WHEN 'dedup_key' THEN dedup_key ELSE priority::text END IS NULL) THEN
            RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
                '%s computes its %s in code, which SQL cannot run: give each of them here, or declare a template instead'
                ' of a function', job_type, (
                    SELECT string_agg(coded, ' and ') FROM jsonb_array_elements_text(derives -> 'in_code') AS coded));
        END IF;
        subject := coalesce(subject, backstay.derived('subject', derives -> 'subject', payload));
        content_hash := coalesce(content_hash, backstay.derived('content_hash', derives -> 'content_hash', payload));
        IF priority IS NULL AND derives -> 'priority' IS NOT NULL THEN
            priority := coalesce(
                (derives -> 'priority' -> 'levels' ->> (backstay.field(derives -> 'priority', 'priority', payload) #>> '{}')),
                derives -> 'priority' ->> 'otherwise')::integer;
        END IF;
        IF dedup_key IS NULL AND derives -> 'dedup_key' IS NOT NULL THEN
            dedup_key := backstay.derived('dedup_key', derives -> 'dedup_key', payload);
            IF derives ->> 'dedup_per' = 'day' THEN
                dedup_key := dedup_key || ':' || (greatest(now(), coalesce(run_at, now() + delay, now()))
                    AT TIME ZONE 'UTC')::date;
            END IF;
            IF dedup_key IS NOT NULL AND dedup_for = 'active' THEN
                kept := (derives ->> 'dedup_for')::bigint;
            END IF;
        END IF;
        IF reuse IS NULL AND content_hash IS NULL AND derives ->> 'reuse' IS NOT NULL
                AND jsonb_array_length(known -> 'reuse_by') > 0 THEN
            RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
                '%s reuses results by %s (reuse_by), of which only Python computes the hash: give content_hash here, or'
                ' declare it as a template instead of reuse_by', job_type, (
                    SELECT string_agg(field, ' and ') FROM jsonb_array_elements_text(known -> 'reuse_by') AS field));
        END IF;
        IF dedup IS NULL AND derives -> 'dedup_key' IS NOT NULL AND derives ->> 'dedup' IS NOT NULL THEN
            dedup := derives ->> 'dedup';
            debounce_max := coalesce(debounce_max, (derives ->> 'debounce')::bigint * interval '1 microsecond');
        END IF;
        IF reuse IS NULL AND content_hash IS NOT NULL AND derives ->> 'reuse' IS NOT NULL THEN
            reuse := CASE (derives ->> 'reuse')::bigint WHEN -1 THEN 'true'
                ELSE ((derives ->> 'reuse')::bigint / 1000000.0) || ' s' END;
        END IF;
    END IF;
    IF job_type IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'job_type is NULL: give the job type';
    ELSIF known IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS004', MESSAGE = format(
            '%L was never announced here: open the app that has its handler once, or start its worker once', job_type);
    ELSIF payload IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'payload is NULL: leave it out, or give JSON';
    ELSIF run_at > now() + '{delay_seconds_max} s' OR delay > '{delay_seconds_max} s' OR run_at = '-infinity'
            OR delay < '0 s' THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            '%s: a job may be due within the next ten years', coalesce(run_at::text, delay::text));
    ELSIF queue !~ '^[A-Za-z0-9._:-]+$' OR length(queue) > {name_length_max} THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            '%L cannot be a queue: use 1 to {name_length_max} of A-Z a-z 0-9 . _ : -', left(queue, 80));
    ELSIF greatest(length(subject), length(dedup_key), length(content_hash), length(concurrency_key), length(rate_key),
            length(fairness_key)) > {key_length_max} OR length(created_by) > {name_length_max}
            OR length(stage) > {stage_length_max} THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE =
            'too long: subject, hash and keys have up to {key_length_max} characters, stage {stage_length_max}, '
            'created_by {name_length_max}';
    ELSIF '' IN (subject, dedup_key, content_hash, concurrency_key, rate_key) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'subject, hash and keys must not be empty: leave out those you do not need';
    ELSIF array_ndims(tags) > 1 OR cardinality(tags) > {tags_max} OR array_position(tags, NULL) IS NOT NULL
            OR EXISTS (SELECT 1 FROM unnest(tags) AS tag WHERE length(tag) NOT BETWEEN 1 AND {tag_length_max}) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE =
            'tags: use up to {tags_max} strings of 1 to {tag_length_max} characters';
    ELSIF octet_length(payload::text) > {payload_bytes_max} THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'the payload has %s bytes, over the limit of {payload_bytes_max}: store the data elsewhere and submit '
            'a reference to it', octet_length(payload::text));
    ELSIF run_at IS NOT NULL AND delay IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'run_at and delay are mutually exclusive: give one';
    ELSIF concurrency_key IS NOT NULL AND known ->> 'concurrency_limit' IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('%s has no global_concurrency', job_type);
    ELSIF dedup_for <> 'active' AND dedup_key IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'dedup_for needs a dedup_key';
    ELSIF dedup_for NOT IN ('active', 'forever') AND NOT backstay.is_interval(dedup_for) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'dedup_for %L: use active, forever or an interval', dedup_for);
    ELSIF dedup_for NOT IN ('active', 'forever') AND dedup_for::interval > '{span_seconds_max} s' THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'dedup_for %L is beyond a century: use forever', dedup_for);
    ELSIF reuse NOT IN ('true', 'false') AND NOT backstay.is_interval(reuse) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('reuse %L: use true, false or an interval', reuse);
    ELSIF reuse NOT IN ('true', 'false') AND reuse::interval > '{span_seconds_max} s' THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('reuse %L is beyond a century: use true', reuse);
    ELSIF reuse <> 'false' AND content_hash IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'reuse needs a content_hash to compare by';
    ELSIF priority NOT BETWEEN 0 AND 100 THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('priority %s: use 0 to 100', priority);
    ELSIF max_attempts NOT BETWEEN 1 AND {max_attempts_max} THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'max_attempts %s: use 1 to {max_attempts_max}', max_attempts);
    ELSIF timeout <= '0 s' OR timeout > '{timeout_seconds_max} s' THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('timeout %s: use up to {timeout_days_max} days', timeout);
    ELSIF fairness_weight NOT BETWEEN 1 AND {fairness_weight_max} OR fairness_weight IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'fairness_weight %s: use 1 to {fairness_weight_max}', fairness_weight);
    ELSIF rate_cost NOT BETWEEN 1 AND {rate_cost_max} OR rate_cost IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('rate_cost %s: use 1 to {rate_cost_max}', rate_cost);
    ELSIF rate_cost > (known -> 'rate' ->> 'count')::integer THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'rate_cost %s: the rate of %s allows %s in its span, so that such a job could never start:'
            ' raise the rate or split the job', rate_cost, job_type, known -> 'rate' ->> 'count');
    ELSIF on_dependency_failure NOT IN ('cancel', 'fail') OR on_dependency_failure IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'on_dependency_failure %L: use cancel or fail', on_dependency_failure);
    ELSIF trigger_rule NOT IN ('all_success', 'all_done', 'one_success', 'one_failed', 'none_failed') OR trigger_rule IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'trigger_rule %L: use all_success, all_done, one_success, one_failed or none_failed', trigger_rule);
    ELSIF trigger_rule <> 'all_success' AND coalesce(cardinality(depends_on), 0) = 0 THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('trigger_rule %L needs depends_on', trigger_rule);
    ELSIF job_id = ANY (depends_on) OR parent = ANY (depends_on) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'depends_on names the job itself, or its parent';
    ELSIF dedup NOT IN ('return', 'error', 'replace') THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('dedup %L: use return, error or replace', dedup);
    ELSIF dedup = 'replace' AND (dedup_key IS NULL OR content_hash IS NOT NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE =
            'dedup replace needs a dedup_key, and no content_hash, which stands for a payload that a later submit replaces';
    ELSIF debounce_max IS NOT NULL AND (dedup IS DISTINCT FROM 'replace' OR debounce_max < coalesce(delay, '0 s')) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'debounce_max needs dedup replace, and is no shorter than the delay';
    ELSIF debounce_max > '{span_seconds_max} s' OR expires > '{span_seconds_max} s' OR expires <= coalesce(delay, '0 s') THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'expires: use a span that is longer than the delay, up to a century';
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
        'payload_version', (known ->> 'version')::integer,
        'expires_at', at + (extract(epoch FROM expires) * 1000000)::bigint,
        'debounce_micros', (extract(epoch FROM debounce_max) * 1000000)::bigint,
        'dedup_replaces', dedup = 'replace')
    || jsonb_build_object(
        'fairness_key', nullif(fairness_key, ''),
        'fairness_weight', fairness_weight,
        'rate_key', CASE WHEN known -> 'rate' ->> 'count' IS NOT NULL THEN coalesce(rate_key, job_type) END,
        'rate', known -> 'rate',
        'rate_cost', rate_cost,
        'dedup_key', dedup_key,
        'dedup_until', CASE dedup_for WHEN 'active' THEN CASE WHEN kept < {forever} THEN at + kept ELSE kept END WHEN 'forever' THEN {forever}
            ELSE at + (extract(epoch FROM dedup_for::interval) * 1000000)::bigint END,
        'dedup_conflict_is_error', coalesce(dedup = 'error', false),
        'depends_on', coalesce(to_jsonb(depends_on), '[]')))), at, at, notify) -> 0 ->> 'job_id')::uuid;
END
$$;

-- SELECT backstay.send_event('019a8d3e-…', 'approved', '{"by": "ada"}');
-- SELECT backstay.send_event(key => 'order:7', name => 'paid', payload => '120');
-- It is stored with the caller's transaction; maintenance hands it to the job as soon as that has committed. Its id.
CREATE FUNCTION backstay.send_event(
    job_id uuid DEFAULT NULL,
    name text DEFAULT NULL,
    payload jsonb DEFAULT 'null',
    key text DEFAULT NULL,
    event_id text DEFAULT NULL,
    by text DEFAULT 'sql',
    notify boolean DEFAULT true) RETURNS text
LANGUAGE plpgsql AS
$$
#variable_conflict use_variable
DECLARE
    id text := coalesce(event_id, backstay.new_id()::text);
    status text;
BEGIN
    IF (job_id IS NULL) = (key IS NULL) THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'send_event: name either a job or a key';
    ELSIF name IS NULL OR length(name) NOT BETWEEN 1 AND {name_length_max} OR length(id) NOT BETWEEN 1 AND {name_length_max}
            OR length(by) NOT BETWEEN 1 AND {name_length_max} THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'send_event: name, event_id and by have 1 to {name_length_max} characters';
    ELSIF length(key) NOT BETWEEN 1 AND {key_length_max} THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = 'send_event: a key has 1 to {key_length_max} characters';
    ELSIF octet_length(coalesce(payload, 'null')::text) > {event_bytes_max} THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
            'the payload of event %L has %s bytes; the limit is {event_bytes_max}: store the data elsewhere and send its name',
            name, octet_length(payload::text));
    END IF;
    IF job_id IS NOT NULL THEN
        status := backstay.status_of(job_id);
        IF status IS NULL THEN
            RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format('no job %s', job_id);
        ELSIF status IN ('completed', 'failed', 'cancelled') THEN
            RAISE EXCEPTION USING ERRCODE = 'BS005', MESSAGE = format(
                'job %s has ended: it receives no events; retry it first', job_id);
        END IF;
    END IF;
    INSERT INTO backstay.event_due (event_id, name, payload, job_id, event_key, sent_by)
    VALUES (id, name, coalesce(payload, 'null')::text, job_id, key, by);
    IF notify THEN
        PERFORM pg_notify(backstay.channel(), 'sql unfinished');
    END IF;
    RETURN id;
END
$$;

-- Cancel every job of a subject that has not ended; how many. Maintenance releases the jobs that wait for them.
CREATE FUNCTION backstay.cancel_jobs(of_type text, of_subject text, by text DEFAULT 'sql') RETURNS integer
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS
$$
DECLARE
    at bigint;
    ids uuid[];
    stood jsonb;
    cancelled integer;
    parents record;
BEGIN
    -- Parents with them, in one order for everyone, as those do who complete their children.
    ids := ARRAY(SELECT job_id FROM backstay.job AS j WHERE subject = of_subject AND job_type = of_type
        AND NOT EXISTS (SELECT FROM backstay.ended WHERE job_id = j.job_id));
    PERFORM 1 FROM backstay.job WHERE job_id = ANY (ids || ARRAY(
        SELECT parent_job_id FROM backstay.job WHERE job_id = ANY (ids) AND parent_job_id IS NOT NULL))
    ORDER BY job_id FOR UPDATE;
    ids := ARRAY(SELECT job_id FROM backstay.job WHERE job_id = ANY (ids)
        AND NOT EXISTS (SELECT FROM backstay.ended AS e WHERE e.job_id = job.job_id));
    PERFORM backstay.lock_places(ids);
    at := backstay.micros();
    stood := (SELECT coalesce(jsonb_agg(to_jsonb(s)), '[]') FROM (
        SELECT job_id, job_type, queue, priority, status, attempt, failures, version, awaited, worker_id, worker_version,
            started_at, progress, stage, rate_key, parent_job_id, concurrency_key, concurrency_limit, content_hash, stored
        FROM backstay.standing
        WHERE job_id = ANY (ids) AND (status || '') NOT IN ('completed', 'failed', 'cancelled')) AS s);
    cancelled := jsonb_array_length(stood);
    IF cancelled = 0 THEN
        RETURN 0;
    END IF;
    PERFORM backstay.leave_places(ids);
    WITH s AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(stood) AS s (job_id uuid, job_type text, queue text, priority integer,
            status text, attempt integer, failures integer, version integer, awaited boolean, worker_id text,
            worker_version text, started_at bigint, progress double precision, stage text, rate_key text,
            parent_job_id uuid, content_hash text, stored integer)
    ), over AS (
        INSERT INTO backstay.ended (job_id, completed_at, started_at, attempt, failures, version, awaited, status,
            worker_id, worker_version, job_type, content_hash)
        SELECT job_id, at, started_at, attempt, failures, version + 1, nullif(awaited, false), 'cancelled', worker_id,
            worker_version, CASE WHEN content_hash IS NOT NULL THEN job_type END, content_hash FROM s
    ), events AS (
        INSERT INTO backstay.event (job_id, version, attempt, at, event, source, target, by)
        SELECT job_id, version, attempt, started_at, 'claim', 'pending', 'processing', worker_id FROM s
        WHERE status = 'processing' AND stored < version
        UNION ALL
        SELECT job_id, version + 1, attempt, at, 'cancel', status, 'cancelled', cancel_jobs.by FROM s
    ), details AS (
        INSERT INTO backstay.detail AS d (job_id, progress, stage)
        SELECT job_id, progress, stage FROM s WHERE status = 'processing'
        ON CONFLICT (job_id) DO UPDATE SET progress = excluded.progress, stage = excluded.stage
    ), due AS (
        INSERT INTO backstay.release_due (parent_id) SELECT job_id FROM s WHERE awaited ON CONFLICT DO NOTHING
    ), tallied AS (
        INSERT INTO backstay.tally AS t (shard, job_type, queue, priority, status, count)
        SELECT pg_backend_pid() % 64, job_type, queue, priority, what, sum(jobs)
        FROM s CROSS JOIN LATERAL (VALUES (status, -1), ('cancelled', 1)) AS change (what, jobs)
        WHERE what NOT IN ('pending', 'processing')
        GROUP BY job_type, queue, priority, what
        ORDER BY job_type, queue, priority, what
        ON CONFLICT (shard, job_type, queue, priority, status) DO UPDATE SET count = t.count + excluded.count
    )
    INSERT INTO backstay.counter AS c
        (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros, waited_micros)
    SELECT at - at % 60000000, job_type, queue, priority, 'cancelled', pg_backend_pid() % 64, 0, count(*), 0, 0
    FROM s GROUP BY job_type, queue, priority ORDER BY job_type, queue, priority
    ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count;
    -- One of a rate may have been the one in sight: then others take its place.
    PERFORM pg_advisory_xact_lock(lock) FROM (
        SELECT DISTINCT hashtextextended('backstay rate ' || (s ->> 'rate_key'), 0) AS lock
        FROM jsonb_array_elements(stood) AS s WHERE s ->> 'rate_key' IS NOT NULL AND s ->> 'status' = 'pending'
        ORDER BY lock) AS locks;
    UPDATE backstay.rate SET due_at = at, wanted = 1 WHERE (due_at = 4611686018427387904 OR wanted > 1) AND rate_key IN (
        SELECT s ->> 'rate_key' FROM jsonb_array_elements(stood) AS s WHERE s ->> 'status' = 'pending');
    SELECT array_agg(parent) AS ids, array_agg(0) AS none, array_agg(-count) AS ended, array_agg(count) AS left_out
    INTO parents FROM (
        SELECT (s ->> 'parent_job_id')::uuid AS parent, count(*)::integer AS count FROM jsonb_array_elements(stood) AS s
        WHERE s ->> 'parent_job_id' IS NOT NULL GROUP BY 1 ORDER BY 1) AS sums;
    IF parents.ids IS NOT NULL THEN
        PERFORM backstay.children_changed(parents.ids, parents.none, parents.ended, parents.none, parents.left_out);
    END IF;
    PERFORM pg_notify(backstay.channel(), 'sql stopped ended due');
    RETURN cancelled;
END
$$;

-- Remove every job of a subject, whatever its state, with its files and its rows; how many. A run that is under way is
-- told that its job is gone.
CREATE FUNCTION backstay.drop_jobs(of_type text, of_subject text, by text DEFAULT 'sql') RETURNS integer LANGUAGE plpgsql AS
$$
BEGIN
    PERFORM backstay.cancel_jobs(of_type, of_subject, by);
    RETURN backstay.drop_ended_jobs(ARRAY(
        SELECT job_id FROM backstay.job WHERE subject = of_subject AND job_type = of_type ORDER BY job_id FOR UPDATE));
END
$$;

-- Of jobs that are locked, remove those that have ended; how many. Not out of a tree: a hole in it would keep its parent
-- waiting, and children that are on their way need theirs. One that others have joined is removed once they are released.
CREATE FUNCTION backstay.drop_ended_jobs(ids uuid[]) RETURNS integer LANGUAGE plpgsql AS
$$
DECLARE
    dropped uuid[]; -- looked at after they were locked: a child may have come while that waited
    joined uuid[];
BEGIN
    dropped := ARRAY(
        SELECT j.job_id FROM backstay.job AS j JOIN backstay.ended AS e ON e.job_id = j.job_id
        WHERE j.job_id = ANY (ids) AND j.parent_job_id IS NULL
          AND NOT EXISTS (SELECT FROM backstay.edge AS x WHERE x.parent_id = j.job_id AND NOT x.joined)
          AND NOT EXISTS (SELECT FROM backstay.detail AS d WHERE d.job_id = j.job_id
            AND (d.children > 0 OR d.open_children > 0)));
    joined := ARRAY(SELECT DISTINCT parent_id FROM backstay.edge WHERE parent_id = ANY (dropped) AND NOT met);
    IF cardinality(joined) > 0 THEN
        INSERT INTO backstay.release_due (parent_id, dropping) SELECT unnest(joined), true
        ON CONFLICT (parent_id) DO UPDATE SET dropping = true;
        dropped := ARRAY(SELECT unnest(dropped) EXCEPT SELECT unnest(joined));
    END IF;
    -- In a transaction that cannot see a child which has come since it began, this fails.
    INSERT INTO backstay.detail (job_id) SELECT unnest(dropped) ON CONFLICT DO NOTHING;
    PERFORM backstay.drop_ended(dropped);
    DELETE FROM backstay.edge WHERE child_id = ANY (dropped) OR parent_id = ANY (dropped);
    DELETE FROM backstay.step WHERE job_id = ANY (dropped);
    DELETE FROM backstay.output WHERE job_id = ANY (dropped);
    DELETE FROM backstay.dedup WHERE job_id = ANY (dropped);
    DELETE FROM backstay.file WHERE job_id = ANY (dropped);
    PERFORM backstay.drop_rows(dropped);
    RETURN cardinality(dropped);
END
$$;

-- Delete a job for good that has ended at this version, or what the archive has of it. Its row in `job` is locked, and that
-- of its parent; its files and rows have been removed. Returns a verdict, or NULL if there is no such job.
CREATE FUNCTION backstay.remove_job(id uuid, at_version integer) RETURNS text
LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS
$$
DECLARE
    is_there boolean := EXISTS (SELECT FROM backstay.job WHERE job_id = id);
    stored integer := CASE WHEN is_there THEN (SELECT version FROM backstay.ended WHERE job_id = id FOR UPDATE)
        ELSE (SELECT (details::json ->> 'version')::integer FROM backstay.archive WHERE job_id = id) END;
BEGIN
    IF stored IS NULL AND NOT is_there THEN
        RETURN NULL;
    ELSIF stored IS DISTINCT FROM at_version THEN
        RETURN 'stale';
    ELSIF EXISTS (SELECT FROM backstay.job WHERE parent_job_id = id)
        OR EXISTS (SELECT FROM backstay.edge AS x JOIN backstay.waiting AS w ON w.job_id = x.child_id
            WHERE x.parent_id = id AND NOT x.met)
        OR EXISTS (SELECT FROM backstay.release_due WHERE parent_id = id)
        OR EXISTS (SELECT FROM backstay.unpack_due WHERE job_id = id) THEN
        RETURN 'blocked';
    END IF;
    IF is_there THEN
        UPDATE backstay.detail SET children = children - 1
        WHERE job_id = (SELECT parent_job_id FROM backstay.job WHERE job_id = id);
        PERFORM backstay.drop_ended(ARRAY[id]);
    END IF;
    DELETE FROM backstay.edge WHERE child_id = id;
    DELETE FROM backstay.step WHERE job_id = id;
    DELETE FROM backstay.output WHERE job_id = id;
    DELETE FROM backstay.staged WHERE job_id = id;
    DELETE FROM backstay.dedup WHERE job_id = id;
    DELETE FROM backstay.archive WHERE job_id = id;
    RETURN 'applied';
END
$$;

-- Take jobs whose places are locked out of those of them that are not their end.
CREATE FUNCTION backstay.leave_places(ids uuid[]) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS
$$
BEGIN
    DELETE FROM backstay.running WHERE job_id = ANY (ids);
    DELETE FROM backstay.later WHERE job_id = ANY (ids);
    DELETE FROM backstay.waiting WHERE job_id = ANY (ids);
    DELETE FROM backstay.ready AS r USING backstay.claimable AS j
    WHERE j.job_id = ANY (ids) AND r.line IN (j.line, CASE WHEN j.line > 0 THEN j.line + 2 END)
      AND r.queue = j.queue AND r.job_type = j.job_type AND r.priority = j.priority
      AND r.scheduled_for = j.scheduled_for AND r.job_id = j.job_id;
END
$$;

-- Delete jobs that have ended, with everything but edges, steps, guards and files.
CREATE FUNCTION backstay.drop_ended(ids uuid[]) RETURNS void LANGUAGE plpgsql SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS
$$
BEGIN
    WITH gone AS (
        DELETE FROM backstay.ended WHERE job_id = ANY (ids) RETURNING job_id, status
    )
    INSERT INTO backstay.tally AS t (shard, job_type, queue, priority, status, count)
    SELECT pg_backend_pid() % 64, j.job_type, j.queue, coalesce(d.priority, j.priority) AS now, what, -count(*)
    FROM gone CROSS JOIN LATERAL (VALUES (status), ('stored')) AS either (what)
    CROSS JOIN LATERAL (SELECT job_type, queue, priority FROM backstay.job WHERE job_id = gone.job_id OFFSET 0) AS j
    LEFT JOIN LATERAL (SELECT priority FROM backstay.detail WHERE job_id = gone.job_id OFFSET 0) AS d ON true
    GROUP BY j.job_type, j.queue, now, what
    ORDER BY j.job_type, j.queue, now, what
    ON CONFLICT (shard, job_type, queue, priority, status) DO UPDATE SET count = t.count + excluded.count;
    DELETE FROM backstay.event WHERE job_id = ANY (ids);
    DELETE FROM backstay.detail WHERE job_id = ANY (ids);
    DELETE FROM backstay.job WHERE job_id = ANY (ids);
END
$$;

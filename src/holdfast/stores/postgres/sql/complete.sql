-- Settle completions as one set: those of jobs whose end sets nothing else free, which is nearly all. Rows are locked in
-- the order of their ids, each looked up by its own: a join would let the planner pair every row of the table with every
-- settlement, as soon as its statistics are old; (status || '') keeps it from doing so with the rows that are processing.
-- Rows that someone else holds are passed over: the slow way waits for them, once the others are settled.
-- Children are left out unless $8 says that the caller counts them with their parents.
-- `by` comes as JSON. Counted as what was claimed: someone may have changed the priority since.
WITH locked AS MATERIALIZED (
    SELECT j.place_of, s.result, s.by, s.priority
    FROM (
        SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::integer[])
            AS s (job_id, attempt, token, result, by, priority)
        ORDER BY job_id
    ) AS s
    CROSS JOIN LATERAL (
        SELECT ctid AS place_of, status, attempt, claim_token, awaited, concurrency_key, parent_job_id
        FROM holdfast.job
        WHERE job_id = s.job_id
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS j
    WHERE (j.status || '') = 'processing' AND j.attempt = s.attempt AND j.claim_token = s.token
      AND NOT j.awaited AND j.concurrency_key IS NULL AND (j.parent_job_id IS NULL OR $8::boolean)
), moment AS MATERIALIZED (
    SELECT now, ',' || now || ',"complete","processing","completed",' AS event
    FROM (SELECT coalesce($7::bigint, holdfast.micros()) AS now) AS clock
), done AS (
    UPDATE holdfast.job AS j
    SET status = 'completed', version = j.version + 1, completed_at = moment.now, updated_at = moment.now,
        lease_expires_at = NULL, progress = 1, stage = 'complete', result = locked.result,
        history = holdfast.trimmed(j.history, j.version) || E'\n[' || j.version + 1 || moment.event || j.attempt
            || ',' || locked.by || ']'
    FROM locked, moment
    WHERE j.ctid = locked.place_of
    RETURNING j.job_id, j.parent_job_id, j.job_type, j.queue, locked.priority, moment.now AS now, moment.now - j.started_at AS ran,
        j.started_at - j.scheduled_for AS waited
), counted AS (
    INSERT INTO holdfast.counter AS c
        (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros, waited_micros)
    SELECT now - now % 60000000, job_type, queue, priority, 'completed', pg_backend_pid() % 64, bucket, count(*),
        sum(ran), sum(waited)
    FROM (SELECT *, holdfast.bucket_of(ran, waited) AS bucket FROM done) AS done
    GROUP BY now, job_type, queue, priority, bucket
    ORDER BY job_type, queue, priority, bucket
    ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count,
        ran_micros = c.ran_micros + excluded.ran_micros, waited_micros = c.waited_micros + excluded.waited_micros
)
SELECT job_id::text, parent_job_id::text FROM done

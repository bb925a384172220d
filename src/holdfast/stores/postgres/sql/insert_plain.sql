-- Jobs that are rows and nothing more, in one statement. $19 is the caller's clock, by which a job is due now or later.
WITH n AS MATERIALIZED (
    SELECT *, due > $19::bigint AS later
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::bigint[], $7::integer[], $8::bigint[],
            $9::text[], $10::text[], $11::text[], $12::text[], $13::uuid[], $14::text[], $15::integer[], $16::text[],
            $17::integer[], $18::text[])
        AS n (job_id, job_type, queue, priority, payload, due, max_attempts, timeout, subject, tags, creator, stage,
            root, hash, version, fairness_key, fairness_weight, traceparent)
), allowed AS MATERIALIZED (
    SELECT holdfast.refuse_over_limit(queue, coming)
    FROM (SELECT queue, count(*) AS coming FROM n WHERE NOT later GROUP BY queue ORDER BY queue) AS due
    WHERE EXISTS (SELECT 1 FROM holdfast.queue WHERE max_pending IS NOT NULL)
), moment AS MATERIALIZED (
    -- The time, once it is known that there is room: no row may be there before it is counted.
    SELECT coalesce($20::bigint, holdfast.micros()) + 0 * (SELECT count(*) FROM allowed) AS now
), job AS (
    INSERT INTO holdfast.job (job_id, job_type, queue, priority, payload, scheduled_for, max_attempts, timeout_micros,
        subject, tags, created_by, job_stage, root_job_id, content_hash, payload_version, fairness_key, fairness_weight,
        traceparent, status, created_at, updated_at, history)
    SELECT job_id, job_type, queue, priority, payload, CASE WHEN later THEN due ELSE due + now - $19::bigint END,
        max_attempts, timeout, subject, tags, creator, stage, root, hash, version, fairness_key, fairness_weight, traceparent,
        CASE WHEN later THEN 'scheduled' ELSE 'pending' END, now, now,
        holdfast.event(1, now, 'submit', NULL, CASE WHEN later THEN 'scheduled' ELSE 'pending' END, 0, creator, NULL)
    FROM n, moment
)
INSERT INTO holdfast.counter AS c (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros, waited_micros)
SELECT now - now % 60000000, job_type, queue, priority, 'submitted', pg_backend_pid() % 64, 0, count(*), 0, 0
FROM n, moment
GROUP BY now, job_type, queue, priority
ORDER BY job_type, queue, priority
ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count

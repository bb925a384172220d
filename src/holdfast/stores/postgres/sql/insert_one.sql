-- insert_plain for a single job, as small as can be: how a statement is set up counts here, not how it treats many.
-- Whether there is room is asked before the time: no row may be there before it is counted, and asking may wait.
WITH counted AS (
    INSERT INTO holdfast.counter AS c
        (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros, waited_micros)
    SELECT now - now % 60000000, $2, $3, $4, 'submitted', pg_backend_pid() % 64, 0, 1, 0, 0
    FROM (SELECT coalesce($20::bigint, holdfast.micros()) AS now) AS moment
    ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count
)
INSERT INTO holdfast.job (job_id, job_type, queue, priority, payload, scheduled_for, max_attempts, timeout_micros,
    subject, tags, created_by, job_stage, root_job_id, content_hash, payload_version, fairness_key, fairness_weight,
    traceparent, status, created_at, updated_at, history)
SELECT $1, $2, $3, $4, $5, CASE WHEN later THEN $6 ELSE $6 + now - $19::bigint END, $7, $8, $9, $10, $11, $12, $13, $14,
    $15, $16, $17, $18, status, now, now,
    '[1,' || now || ',"submit",null,"' || status || '",0,' || coalesce(to_json($11::text)::text, 'null') || ']'
FROM (
    SELECT
        CASE WHEN $6 <= $19::bigint AND EXISTS (SELECT 1 FROM holdfast.queue WHERE max_pending IS NOT NULL)
            THEN holdfast.refuse_over_limit($3, 1) END AS allowed,
        coalesce($20::bigint, holdfast.micros()) AS now,
        $6 > $19::bigint AS later,
        CASE WHEN $6 > $19::bigint THEN 'scheduled' ELSE 'pending' END AS status
) AS moment

-- Concurrency keys that have parked jobs, with their limit: one seek of job_parked for each key.
WITH RECURSIVE each (key, key_limit) AS (
    (SELECT concurrency_key, concurrency_limit FROM holdfast.job
     WHERE parked AND NOT rate_parked AND concurrency_key IS NOT NULL
     ORDER BY concurrency_key LIMIT 1)
    UNION ALL
    SELECT next.concurrency_key, next.concurrency_limit FROM each CROSS JOIN LATERAL (
        SELECT concurrency_key, concurrency_limit FROM holdfast.job
        WHERE parked AND NOT rate_parked AND concurrency_key > each.key
        ORDER BY concurrency_key LIMIT 1) AS next
)
SELECT key, key_limit FROM each LIMIT $1

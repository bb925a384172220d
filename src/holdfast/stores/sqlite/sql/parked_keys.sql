-- Keys that have parked jobs, with their limit: one seek of job_parked for each key.
WITH RECURSIVE each (key) AS (
    SELECT * FROM (
        SELECT concurrency_key FROM job INDEXED BY job_parked
        WHERE parked = 1 AND rate_parked = 0 AND concurrency_key IS NOT NULL
        ORDER BY concurrency_key LIMIT 1)
    UNION ALL
    SELECT (
        SELECT concurrency_key FROM job INDEXED BY job_parked
        WHERE parked = 1 AND rate_parked = 0 AND concurrency_key > each.key
        ORDER BY concurrency_key LIMIT 1)
    FROM each WHERE each.key IS NOT NULL
    LIMIT ?1
)
SELECT key, (
    SELECT concurrency_limit FROM job INDEXED BY job_parked
    WHERE parked = 1 AND rate_parked = 0 AND concurrency_key = each.key LIMIT 1)
FROM each WHERE key IS NOT NULL

-- The concurrency keys of the jobs in ?1.
SELECT DISTINCT concurrency_key, max(concurrency_limit)
FROM job
WHERE job_id IN (SELECT value FROM json_each(?1)) AND concurrency_key IS NOT NULL
GROUP BY concurrency_key

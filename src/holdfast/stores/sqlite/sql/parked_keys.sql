-- Keys that have parked jobs. Index: job_key.
SELECT concurrency_key, max(concurrency_limit)
FROM job INDEXED BY job_key
WHERE concurrency_key IS NOT NULL AND status = 'pending' AND parked = 1
GROUP BY concurrency_key
LIMIT ?1

-- Keys that have parked jobs. Index: job_parked, which holds nothing else.
SELECT concurrency_key, max(concurrency_limit)
FROM job INDEXED BY job_parked
WHERE parked = 1
GROUP BY concurrency_key
LIMIT ?1

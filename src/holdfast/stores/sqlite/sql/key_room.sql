-- How many jobs of a concurrency key run, and how many pending ones may be claimed. Index: job_key.
SELECT
    (SELECT count(*) FROM job INDEXED BY job_key WHERE concurrency_key = ?1 AND status = 'processing'),
    (SELECT count(*) FROM (
        SELECT 1 FROM job INDEXED BY job_key
        WHERE concurrency_key = ?1 AND status = 'pending' AND parked = 0 LIMIT ?2))

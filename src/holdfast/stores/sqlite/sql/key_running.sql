-- How many jobs of a concurrency key run. Index: job_key.
SELECT count(*) FROM job INDEXED BY job_key WHERE concurrency_key = ?1 AND status = 'processing'

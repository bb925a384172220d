-- The queues and types in which a key has parked jobs. Index: job_parked.
SELECT DISTINCT queue, job_type FROM job INDEXED BY job_parked WHERE concurrency_key = ?1 AND parked = 1

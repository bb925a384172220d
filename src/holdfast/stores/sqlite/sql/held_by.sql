-- Claims of the workers in :workers, which are known to be dead. Index: job_lease; only processing rows.
SELECT job_id, attempt, failures, max_attempts, snoozes, give_backs, worker_id, lease_expires_at,
    job_type, queue, priority, scheduled_for, started_at, parent_job_id
FROM job INDEXED BY job_lease
WHERE status = 'processing' AND worker_id IN (SELECT value FROM json_each(:workers))
ORDER BY lease_expires_at
LIMIT :limit

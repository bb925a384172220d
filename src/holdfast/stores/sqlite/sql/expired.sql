-- Claims whose lease ran out, oldest first. Index: job_lease.
SELECT job_id, attempt, failures, max_attempts, snoozes, give_backs, worker_id, lease_expires_at,
    job_type, queue, priority, scheduled_for, started_at, parent_job_id
FROM job INDEXED BY job_lease
WHERE status = 'processing' AND lease_expires_at <= :now
ORDER BY lease_expires_at
LIMIT :limit

-- Claims whose lease ran out, or whose worker is known to be dead, oldest first. Index: job_processing, which holds
-- nothing but what runs now. A row that someone's transaction holds is not told: its worker may be waiting to settle it.
SELECT job_id::text, attempt, failures, max_attempts, snoozes, give_backs, worker_id, lease_expires_at, job_type, queue,
    priority, scheduled_for, started_at, parent_job_id::text
FROM holdfast.job
WHERE status = 'processing' AND (lease_expires_at <= coalesce($1::bigint, holdfast.micros()) OR worker_id = ANY ($3::text[]))
ORDER BY lease_expires_at
LIMIT $2
FOR NO KEY UPDATE SKIP LOCKED

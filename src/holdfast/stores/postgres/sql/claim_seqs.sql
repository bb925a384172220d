-- Take jobs that this transaction has locked as pending.
UPDATE holdfast.job AS j
SET status = 'processing', attempt = j.attempt + 1, version = j.version + 1, claim_token = $2, worker_id = $3,
    worker_version = $4, lease_expires_at = $6::bigint + $5::bigint, started_at = $6, updated_at = $6,
    progress = 0, stage = '',
    history = holdfast.trimmed(j.history, j.version) || E'\n'
        || holdfast.event(j.version + 1, $6, 'claim', 'pending', 'processing', j.attempt + 1, $3, NULL)
WHERE j.seq = ANY ($1::bigint[]) AND (j.status || '') = 'pending'
RETURNING j.job_id::text, j.job_type, j.queue, j.priority, j.payload, j.attempt, j.version, j.failures, j.max_attempts,
    j.snoozes, j.give_backs, j.timeout_micros, j.created_at, j.scheduled_for, j.lease_expires_at, j.subject,
    j.parent_job_id::text, j.root_job_id::text, j.logs, j.artifacts, j.tags, j.created_by, j.job_stage, j.dedup_key,
    j.content_hash, j.worker_id, j.started_at, j.payload_version, j.schedule, j.tick_at,
    coalesce(j.waits, 0), j.join_name, coalesce(j.children, 0), j.traceparent,
    CASE WHEN starts_with(j.last_error, 'LeaseLost:') THEN (j.errors::json -> -1 ->> 'at')::bigint END

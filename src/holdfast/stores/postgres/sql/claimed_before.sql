-- What an earlier try of the same claim request took and still holds. Index: job_processing.
SELECT j.job_id::text, j.job_type, j.queue, j.priority, j.payload, j.attempt, j.version, j.failures, j.max_attempts,
    j.snoozes, j.give_backs, j.timeout_micros, j.created_at, j.scheduled_for, j.lease_expires_at, j.subject,
    j.parent_job_id::text, j.root_job_id::text, j.logs, j.artifacts, j.tags, j.created_by, j.job_stage, j.dedup_key,
    j.content_hash, j.worker_id, j.started_at, j.payload_version, j.schedule, j.tick_at,
    coalesce(j.waits, 0), j.join_name, coalesce(j.children, 0), j.traceparent,
    CASE WHEN starts_with(j.last_error, 'LeaseLost:') THEN (j.errors::json -> -1 ->> 'at')::bigint END
FROM holdfast.job AS j
WHERE j.status = 'processing' AND j.worker_id = $1 AND j.claim_token = $2

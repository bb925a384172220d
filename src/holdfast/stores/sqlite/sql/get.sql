-- Whole records by id.
SELECT job_id, job_type, queue, status, priority, payload, created_at, updated_at, scheduled_for, started_at,
    completed_at, attempt, failures, snoozes, give_backs, max_attempts, timeout_micros, version, worker_id,
    worker_version, lease_expires_at, progress, stage, result, result_artifact, last_error, errors, logs, log_location,
    metrics, artifacts, subject, tags, created_by, dedup_key, content_hash, reused_from, concurrency_key, concurrency_limit,
    parked, parent_job_id, root_job_id, job_stage, on_dependency_failure, trigger_rule, children, open_children,
    failed_children, cancelled_children, awaits, waits, result_tables, rows_of, rows_attempt,
    payload_version, fairness_key, fairness_weight, rate_key, schedule, tick_at, traceparent, history
FROM job
WHERE job_id IN (SELECT value FROM json_each(?1))

-- What a worker needs of the jobs in ?1, as one JSON value in the order of ClaimedJob's fields.
SELECT json_group_array(json_array(
    job_id, job_type, queue, priority, payload, attempt, version, failures, max_attempts, snoozes, give_backs,
    timeout_micros, created_at, scheduled_for, lease_expires_at, subject, parent_job_id, root_job_id, logs,
    artifacts, tags, created_by, job_stage, dedup_key, content_hash, worker_id, started_at,
    payload_version, schedule, tick_at, coalesce(waits, 0), join_name, coalesce(children, 0), traceparent,
    CASE WHEN substr(last_error, 1, 10) = 'LeaseLost:' THEN json_extract(errors, '$[#-1].at') END))
FROM job
WHERE seq IN (SELECT value FROM json_each(?1))

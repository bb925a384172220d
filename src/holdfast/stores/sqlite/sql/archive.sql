-- Keep what is worth keeping of the jobs in :batch, by seq. A job may have files that its record does not name: of an
-- attempt that was lost, stopped or failed. Only one that completed at its first attempt names all.
INSERT OR REPLACE INTO archive (job_id, archived_at, status, has_files, details)
SELECT job.job_id, :now, job.status,
    job.attempt > 1 OR (job.attempt = 1 AND job.status <> 'completed')
        OR job.log_location IS NOT NULL OR job.artifacts IS NOT NULL OR job.result_artifact IS NOT NULL
        OR job.result_tables IS NOT NULL,
    json_patch('{}', json_object( -- which leaves out what is NULL
        'job_id', job.job_id, 'job_type', job_type, 'queue', queue, 'status', status, 'priority', priority,
        'payload', 'null', 'created_at', created_at, 'updated_at', updated_at, 'scheduled_for', scheduled_for,
        'started_at', started_at, 'completed_at', completed_at, 'attempt', attempt, 'failures', failures,
        'snoozes', snoozes, 'give_backs', give_backs, 'max_attempts', max_attempts, 'timeout_micros', timeout_micros,
        'version', version, 'worker_id', worker_id, 'worker_version', worker_version, 'progress', progress,
        'stage', stage, 'last_error', last_error, 'metrics', metrics, 'subject', subject, 'tags', tags,
        'created_by', created_by, 'dedup_key', dedup_key, 'content_hash', content_hash, 'reused_from', reused_from,
        'concurrency_key', concurrency_key, 'parent_job_id', parent_job_id, 'root_job_id', root_job_id,
        'job_stage', job_stage, 'payload_version', payload_version, 'fairness_key', fairness_key,
        'rate_key', rate_key, 'schedule', schedule, 'tick_at', tick_at,
        'trigger_rule', trigger_rule, 'children', children, 'open_children', open_children,
        'failed_children', failed_children, 'cancelled_children', cancelled_children, 'waits', waits,
        'result_tables', json(result_tables), 'rows_of', rows_of, 'rows_attempt', rows_attempt,
        'processing_micros', CASE WHEN started_at IS NOT NULL THEN max(0, completed_at - started_at) END))
FROM json_each(:batch) AS each JOIN job ON job.seq = each.value

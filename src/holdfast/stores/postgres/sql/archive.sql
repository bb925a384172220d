-- Move jobs to the archive, by seq: this transaction holds them and has seen that they can go. A job may have files that
-- its record does not name: of an attempt that was lost, stopped or failed. Only one that completed at its first attempt
-- names all.
WITH gone AS (
    DELETE FROM holdfast.job WHERE seq = ANY ($1::bigint[]) RETURNING *
), kept AS (
    INSERT INTO holdfast.archive (job_id, archived_at, status, has_files, details)
    SELECT job_id, $2, status,
        attempt > 1 OR (attempt = 1 AND status <> 'completed')
            OR log_location IS NOT NULL OR artifacts IS NOT NULL OR result_artifact IS NOT NULL
            OR result_tables IS NOT NULL,
        jsonb_strip_nulls(jsonb_build_object(
            'job_id', job_id, 'job_type', job_type, 'queue', queue, 'status', status, 'priority', priority,
            'payload', 'null', 'created_at', created_at, 'updated_at', updated_at, 'scheduled_for', scheduled_for,
            'started_at', started_at, 'completed_at', completed_at, 'attempt', attempt, 'failures', failures,
            'snoozes', snoozes, 'give_backs', give_backs, 'max_attempts', max_attempts,
            'timeout_micros', timeout_micros, 'version', version, 'worker_id', worker_id,
            'worker_version', worker_version, 'progress', progress, 'stage', stage, 'last_error', last_error,
            'metrics', metrics, 'subject', subject, 'tags', tags) || jsonb_build_object(
            'created_by', created_by, 'dedup_key', dedup_key, 'content_hash', content_hash,
            'reused_from', reused_from, 'concurrency_key', concurrency_key, 'parent_job_id', parent_job_id,
            'root_job_id', root_job_id, 'job_stage', job_stage, 'payload_version', payload_version,
            'fairness_key', fairness_key, 'rate_key', rate_key, 'schedule', schedule, 'tick_at', tick_at,
            'trigger_rule', trigger_rule, 'children', children, 'open_children', open_children,
            'failed_children', failed_children, 'cancelled_children', cancelled_children, 'waits', waits,
            'result_tables', result_tables::json, 'rows_of', rows_of, 'rows_attempt', rows_attempt,
            'processing_micros', CASE WHEN started_at IS NOT NULL THEN greatest(0, completed_at - started_at) END))::text
    FROM gone
    ON CONFLICT (job_id) DO UPDATE SET archived_at = excluded.archived_at, status = excluded.status,
        has_files = excluded.has_files, details = excluded.details
), steps AS (
    DELETE FROM holdfast.step WHERE job_id IN (SELECT job_id FROM gone)
), edges AS (
    DELETE FROM holdfast.edge WHERE child_id IN (SELECT job_id FROM gone)
)
SELECT count(*) FROM gone

-- Store one job. ?1 to ?22 are the leading fields of NewJob in order; ?23 status, ?24 now, ?25 history.
INSERT INTO job (
    job_id, job_type, queue, priority, payload, scheduled_for, max_attempts, timeout_micros, subject, tags, created_by,
    job_stage, parent_job_id, root_job_id, content_hash, concurrency_key, concurrency_limit, on_dependency_failure,
    payload_version, fairness_key, fairness_weight, traceparent, status, created_at, updated_at, history
) VALUES (
    ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20,
    ?21, ?22, ?23, ?24, ?24, ?25
)

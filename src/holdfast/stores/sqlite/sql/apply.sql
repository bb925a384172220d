-- Apply one transition while its guards hold. NULL keeps what is stored. Served by the unique index on job_id.
-- A claim's token outlives its settlement, so that a repeated write is recognised; others' changes clear it.
UPDATE job
SET status = :target,
    version = version + 1,
    updated_at = :now,
    completed_at = CASE WHEN :target IN ('completed', 'failed', 'cancelled') THEN :now END,
    lease_expires_at = CASE WHEN :target = 'processing' THEN lease_expires_at END,
    claim_token = CASE WHEN :token IS NULL AND :target <> 'processing' THEN NULL ELSE claim_token END,
    parked = CASE WHEN :target = 'pending' AND :source = 'pending' THEN parked ELSE 0 END,
    rate_parked = CASE WHEN :target = 'pending' AND :source = 'pending' THEN rate_parked ELSE 0 END,
    priority = coalesce(:priority, priority),
    scheduled_for = coalesce(:scheduled_for, scheduled_for),
    failures = coalesce(:failures, failures),
    snoozes = coalesce(:snoozes, snoozes),
    give_backs = coalesce(:give_backs, give_backs),
    progress = coalesce(:progress, progress),
    stage = coalesce(:stage, stage),
    unmet_dependencies = CASE WHEN :target = 'waiting' THEN coalesce(:unmet, unmet_dependencies) ELSE 0 END,
    awaits = CASE WHEN :target = 'waiting' THEN coalesce(:awaits, CASE :source WHEN 'waiting' THEN awaits END) END,
    waits = coalesce(:waits, waits),
    join_name = CASE WHEN :clear_result OR :awaits IS NOT NULL THEN :join ELSE join_name END,
    result = CASE WHEN :clear_result THEN NULL ELSE coalesce(:result, result) END,
    result_artifact = CASE WHEN :clear_result THEN NULL ELSE coalesce(:result_artifact, result_artifact) END,
    joins = CASE WHEN :clear_result THEN NULL ELSE joins END,
    reused_from = CASE WHEN :clear_result THEN NULL ELSE reused_from END,
    rows_of = CASE WHEN :clear_result THEN NULL ELSE rows_of END,
    rows_attempt = CASE WHEN :clear_result THEN NULL ELSE rows_attempt END,
    logs = coalesce(:logs, logs),
    log_location = coalesce(:log_location, log_location),
    metrics = coalesce(:metrics, metrics),
    artifacts = coalesce(:artifacts, artifacts),
    last_error = coalesce(:last_error, last_error),
    errors = CASE WHEN :error IS NULL THEN errors ELSE (
        SELECT json_group_array(json(value) ORDER BY key) FROM (
            SELECT key, value FROM json_each(json_insert(coalesce(errors, '[]'), '$[#]', json(:error)))
            ORDER BY key DESC LIMIT :errors_kept)) END,
    history = CASE version % 64 WHEN 63 THEN trim_history(history) ELSE history END
        || char(10) || '[' || (version + 1) || :event
WHERE job_id = :job_id
  AND +status = :source
  AND attempt = :attempt
  AND (:version IS NULL OR version = :version)
  AND (:token IS NULL OR claim_token = :token)
  AND (:lease IS NULL OR lease_expires_at = :lease)
RETURNING parent_job_id

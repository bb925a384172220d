-- Apply one transition while its guards hold. NULL keeps what is stored. Index: the unique one on job_id.
-- A claim's token outlives its settlement, so that a repeated write is recognised; others' changes clear it.
UPDATE holdfast.job
SET status = $3,
    version = version + 1,
    updated_at = $8,
    completed_at = CASE WHEN $3 IN ('completed', 'failed', 'cancelled') THEN $8::bigint END,
    lease_expires_at = CASE WHEN $3 = 'processing' THEN lease_expires_at END,
    claim_token = CASE WHEN $6::text IS NULL AND $3 <> 'processing' THEN NULL ELSE claim_token END,
    parked = CASE WHEN $3 = 'pending' AND $2 = 'pending' THEN parked ELSE false END,
    rate_parked = CASE WHEN $3 = 'pending' AND $2 = 'pending' THEN rate_parked ELSE false END,
    priority = coalesce($9::integer, priority),
    scheduled_for = coalesce($10::bigint, scheduled_for),
    failures = coalesce($11::integer, failures),
    snoozes = coalesce($12::integer, snoozes),
    give_backs = coalesce($13::integer, give_backs),
    progress = coalesce($14::double precision, progress),
    stage = coalesce($15::text, stage),
    unmet_dependencies = CASE WHEN $3 = 'waiting' THEN coalesce($29::integer, unmet_dependencies) ELSE 0 END,
    awaits = CASE WHEN $3 = 'waiting' THEN coalesce($30::text, CASE $2 WHEN 'waiting' THEN awaits END) END,
    waits = coalesce($31::integer, waits),
    join_name = CASE WHEN $16 OR $30::text IS NOT NULL THEN $32::text ELSE join_name END,
    result = CASE WHEN $16 THEN NULL ELSE coalesce($17::text, result) END,
    result_artifact = CASE WHEN $16 THEN NULL ELSE coalesce($18::text, result_artifact) END,
    joins = CASE WHEN $16 THEN NULL ELSE joins END,
    reused_from = CASE WHEN $16 THEN NULL ELSE reused_from END,
    rows_of = CASE WHEN $16 THEN NULL ELSE rows_of END,
    rows_attempt = CASE WHEN $16 THEN NULL ELSE rows_attempt END,
    logs = coalesce($19::text, logs),
    log_location = coalesce($20::text, log_location),
    metrics = coalesce($21::text, metrics),
    artifacts = coalesce($22::text, artifacts),
    last_error = coalesce($23::text, last_error),
    errors = CASE WHEN $24::text IS NULL THEN errors ELSE holdfast.with_error(errors, $24, $25) END,
    history = holdfast.trimmed(history, version) || E'\n'
        || holdfast.event(version + 1, $8, $26, $2, $3, $4, $27, $28)
WHERE job_id = $1::uuid
  AND (status || '') = $2
  AND attempt = $4
  AND ($5::integer IS NULL OR version = $5)
  AND ($6::text IS NULL OR claim_token = $6)
  AND ($7::bigint IS NULL OR lease_expires_at = $7)
RETURNING parent_job_id::text

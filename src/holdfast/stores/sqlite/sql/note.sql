-- Bookkeeping of a running attempt, while its claim holds. NULL keeps what is stored.
UPDATE job
SET progress = coalesce(:progress, progress),
    stage = coalesce(:stage, stage),
    logs = coalesce(:logs, logs),
    log_location = coalesce(:log_location, log_location),
    metrics = coalesce(:metrics, metrics),
    artifacts = coalesce(:artifacts, artifacts),
    updated_at = :now
WHERE job_id = :job_id AND +status = 'processing' AND attempt = :attempt AND claim_token = :token

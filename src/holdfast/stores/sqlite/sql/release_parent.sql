-- Let a job go on that has waited for its children, or end it, as :target says. Its time in line begins now.
UPDATE job
SET status = :target, version = version + 1, updated_at = :now, awaits = NULL,
    scheduled_for = CASE :target WHEN 'pending' THEN :now ELSE scheduled_for END,
    completed_at = CASE WHEN :target IN ('failed', 'cancelled') THEN :now END,
    stage = CASE :target WHEN 'failed' THEN 'error' ELSE stage END,
    last_error = CASE :target WHEN 'failed' THEN :reason ELSE last_error END,
    history = CASE version % 64 WHEN 63 THEN trim_history(history) ELSE history END
        || char(10) || '[' || (version + 1) || :event
WHERE job_id = :parent AND +status = 'waiting' AND awaits IS NOT NULL

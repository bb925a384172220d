-- Move a waiting job on, or only count down what it waits on (:target is 'waiting' then, and no event is written). One
-- that waits for its children is not moved by what it once depended on.
UPDATE job
SET unmet_dependencies = :unmet,
    status = :target,
    version = version + (:target <> 'waiting'),
    updated_at = :now,
    completed_at = CASE WHEN :target IN ('completed', 'failed', 'cancelled') THEN :now END,
    stage = CASE :target WHEN 'failed' THEN 'error' WHEN 'completed' THEN 'complete' ELSE stage END,
    progress = CASE :target WHEN 'completed' THEN 1 ELSE progress END,
    last_error = CASE :target WHEN 'failed' THEN :reason ELSE last_error END,
    reused_from = CASE WHEN joins IS NULL THEN reused_from WHEN :target = 'completed' THEN joins END,
    joins = CASE WHEN :target = 'waiting' THEN joins END,
    result = CASE :target WHEN 'completed' THEN (SELECT d.result FROM job AS d WHERE d.job_id = job.joins) END,
    result_artifact = CASE :target WHEN 'completed'
        THEN (SELECT d.result_artifact FROM job AS d WHERE d.job_id = job.joins) END,
    metrics = CASE :target WHEN 'completed'
        THEN (SELECT d.metrics FROM job AS d WHERE d.job_id = job.joins) ELSE metrics END,
    (result_tables, rows_of, rows_attempt) = (
        SELECT d.result_tables, CASE WHEN d.result_tables IS NOT NULL THEN coalesce(d.rows_of, d.job_id) END,
            CASE WHEN d.result_tables IS NOT NULL THEN coalesce(d.rows_attempt, d.attempt) END
        FROM job AS d WHERE d.job_id = job.joins AND :target = 'completed'),
    history = CASE WHEN :target = 'waiting' THEN history ELSE history || char(10) || '[' || (version + 1) || :event END
WHERE job_id = :child AND +status = 'waiting' AND awaits IS NULL

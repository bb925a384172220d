-- Complete a job that was just inserted with the result of the identical job :donor, which :ran has brought.
UPDATE job
SET completed_at = :now, progress = 1, stage = 'complete', reused_from = :ran, status = 'completed',
    (result, result_artifact, metrics, result_tables, rows_of, rows_attempt) = (
        SELECT result, result_artifact, metrics, result_tables,
            CASE WHEN result_tables IS NOT NULL THEN coalesce(rows_of, job_id) END,
            CASE WHEN result_tables IS NOT NULL THEN coalesce(rows_attempt, attempt) END
        FROM job WHERE job_id = :donor)
WHERE job_id = :job_id

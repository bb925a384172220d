-- Complete a job that was just inserted with the result of the identical job :donor.
UPDATE job
SET completed_at = :now, progress = 1, stage = 'complete', reused_from = :donor, status = 'completed',
    (result, result_artifact, metrics) = (SELECT result, result_artifact, metrics FROM job WHERE job_id = :donor)
WHERE job_id = :job_id

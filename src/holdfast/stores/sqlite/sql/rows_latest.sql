-- The job with rows of a subject and type that completed last. Those of one that reused them may be withdrawn.
-- Index: job_latest.
SELECT job.job_id FROM job INDEXED BY job_latest
WHERE job.subject = ?1 AND job.job_type = ?2 AND job.status = 'completed' AND job.result_tables IS NOT NULL
  AND (job.rows_of IS NULL
    OR EXISTS (SELECT 1 FROM job AS r WHERE r.job_id = job.rows_of AND r.attempt = job.rows_attempt)
    OR EXISTS (SELECT 1 FROM archive AS k WHERE k.job_id = job.rows_of AND k.details ->> 'attempt' = job.rows_attempt))
ORDER BY completed_at DESC LIMIT 1

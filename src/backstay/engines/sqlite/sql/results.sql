-- name: rows_holder
-- Who holds a job, and in which result tables it has rows. Index: the job_id's own.
SELECT status, attempt, claim_token, result_tables FROM job WHERE job_id = ?1

-- name: rows_add_table
-- A job has rows in one more table.
UPDATE job SET result_tables = json_insert(coalesce(result_tables, '[]'), '$[#]', ?1) WHERE job_id = ?2

-- name: rows_source
-- Whose rows a job answers with, and at which attempt that one is now, or was when it went to the archive.
SELECT job.status, job.attempt, job.rows_of, job.rows_attempt, coalesce(donor.attempt,
    (SELECT a.details ->> 'attempt' FROM archive AS a WHERE a.job_id = job.rows_of))
FROM job LEFT JOIN job AS donor ON donor.job_id = job.rows_of
WHERE job.job_id = ?1

-- name: rows_latest
-- The job with rows of a subject and type that completed last. Those of one that reused them may be withdrawn.
-- Index: job_latest.
SELECT job.job_id FROM job INDEXED BY job_latest
WHERE job.subject = ?1 AND job.job_type = ?2 AND job.status = 'completed' AND job.result_tables IS NOT NULL
  AND (job.rows_of IS NULL
    OR EXISTS (SELECT 1 FROM job AS r WHERE r.job_id = job.rows_of AND r.attempt = job.rows_attempt)
    OR EXISTS (SELECT 1 FROM archive AS k WHERE k.job_id = job.rows_of AND k.details ->> 'attempt' = job.rows_attempt))
ORDER BY completed_at DESC LIMIT 1

-- The job with rows of a subject and type that completed last. Index: job_latest.
SELECT job_id::text FROM holdfast.job
WHERE subject = $1 AND job_type = $2 AND status = 'completed' AND result_tables IS NOT NULL
ORDER BY completed_at DESC LIMIT 1

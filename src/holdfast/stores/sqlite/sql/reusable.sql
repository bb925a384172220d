-- The newest completed job with the same type and content; the one that ran, where this one was reused itself; and how
-- long that took. Not one whose rows are withdrawn, or are about to be, for their job runs again. Index: job_content.
SELECT d.job_id, coalesce(d.reused_from, d.job_id), coalesce(
    (SELECT max(0, o.completed_at - o.started_at) FROM job AS o WHERE o.job_id = coalesce(d.reused_from, d.job_id)),
    (SELECT a.details ->> 'processing_micros' FROM archive AS a WHERE a.job_id = d.reused_from), 0)
FROM job AS d INDEXED BY job_content
WHERE d.content_hash = :content_hash AND d.job_type = :job_type AND d.status = 'completed' AND d.completed_at >= :since
  AND (d.rows_of IS NULL
    OR EXISTS (SELECT 1 FROM job AS r WHERE r.job_id = d.rows_of AND r.attempt = d.rows_attempt
        AND r.status || '' = 'completed')
    OR EXISTS (SELECT 1 FROM archive AS k WHERE k.job_id = d.rows_of AND k.details ->> 'attempt' = d.rows_attempt))
ORDER BY d.completed_at DESC
LIMIT 1

-- The newest completed job with the same type and content; the one that ran, where this one was reused itself; and how
-- long that took. Index: job_content.
SELECT d.job_id, coalesce(d.reused_from, d.job_id), coalesce(
    (SELECT max(0, o.completed_at - o.started_at) FROM job AS o WHERE o.job_id = coalesce(d.reused_from, d.job_id)),
    (SELECT a.details ->> 'processing_micros' FROM archive AS a WHERE a.job_id = d.reused_from), 0)
FROM job AS d INDEXED BY job_content
WHERE d.content_hash = :content_hash AND d.job_type = :job_type AND d.status = 'completed' AND d.completed_at >= :since
ORDER BY d.completed_at DESC
LIMIT 1

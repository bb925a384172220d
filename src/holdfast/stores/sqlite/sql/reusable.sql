-- The newest completed job with the same type and content. Index: job_content.
SELECT job_id
FROM job
WHERE content_hash = :content_hash AND job_type = :job_type AND status = 'completed' AND completed_at >= :since
ORDER BY completed_at DESC
LIMIT 1

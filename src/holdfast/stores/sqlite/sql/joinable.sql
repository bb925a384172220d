-- The identical job that is on its way and does not itself wait on one. Index: job_content.
SELECT job_id
FROM job
WHERE content_hash = :content_hash AND job_type = :job_type AND completed_at IS NULL AND joins IS NULL
  AND status IN ('waiting', 'scheduled', 'pending', 'processing', 'retrying')
ORDER BY seq
LIMIT 1

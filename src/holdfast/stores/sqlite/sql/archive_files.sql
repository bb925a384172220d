-- Archived jobs whose files and rows can go: all but those with a large result, or rows, that a job which reused them
-- still answers with.
-- Indexes: archive_files, job_content.
SELECT a.job_id FROM archive AS a INDEXED BY archive_files
WHERE a.has_files = 1 AND NOT EXISTS (
    SELECT 1 FROM job INDEXED BY job_content
    WHERE job.content_hash = a.details ->> 'content_hash' AND job.job_type = a.details ->> 'job_type'
      AND (job.rows_of = a.job_id OR instr(job.result_artifact, a.job_id) > 0))
LIMIT ?1

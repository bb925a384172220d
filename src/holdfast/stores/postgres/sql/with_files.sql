-- Archived jobs whose files and rows can go: all but those with a large result, or rows, that a job which reused them
-- still answers with.
-- Indexes: archive_files, job_content.
SELECT a.job_id::text FROM holdfast.archive AS a
WHERE a.has_files AND NOT EXISTS (
    SELECT 1 FROM holdfast.job AS j
    WHERE j.content_hash = a.details::json ->> 'content_hash' AND j.job_type = a.details::json ->> 'job_type'
      AND (j.rows_of = a.job_id OR strpos(j.result_artifact, a.job_id::text) > 0))
LIMIT $1

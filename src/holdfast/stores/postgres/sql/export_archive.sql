-- A page of the archive after $1. Index: the primary key.
SELECT job_id::text, status, archived_at, has_files, details FROM holdfast.archive
WHERE job_id > $1::uuid ORDER BY job_id LIMIT $2

-- A page of the archive after ?1. Index: the primary key.
SELECT job_id, status, archived_at, has_files, details FROM archive WHERE job_id > ?1 ORDER BY job_id LIMIT ?2

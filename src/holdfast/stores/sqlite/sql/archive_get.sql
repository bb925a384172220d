-- What the archive keeps of the jobs in ?1.
SELECT job_id, archived_at, status, details FROM archive WHERE job_id IN (SELECT value FROM json_each(?1))

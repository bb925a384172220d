-- What the archive keeps of jobs.
SELECT job_id::text, archived_at, status, details FROM holdfast.archive WHERE job_id = ANY ($1::uuid[])

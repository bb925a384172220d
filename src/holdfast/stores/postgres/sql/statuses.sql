-- Where jobs stand, in the jobs or in the archive.
SELECT job_id::text, status FROM holdfast.job WHERE job_id = ANY ($1::uuid[])
UNION ALL
SELECT job_id::text, status FROM holdfast.archive WHERE job_id = ANY ($1::uuid[])

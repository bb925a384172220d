-- The dedup keys of jobs.
SELECT DISTINCT dedup_key FROM holdfast.job WHERE job_id = ANY ($1::uuid[]) AND dedup_key IS NOT NULL

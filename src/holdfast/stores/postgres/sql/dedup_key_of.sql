-- The dedup key of a job.
SELECT dedup_key FROM holdfast.job WHERE job_id = $1::uuid

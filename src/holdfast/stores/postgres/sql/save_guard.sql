-- A dedup key stands for a job again, while that is active.
INSERT INTO holdfast.dedup (dedup_key, job_id, until) VALUES ($1, $2::uuid, NULL)
ON CONFLICT (dedup_key) DO UPDATE SET job_id = excluded.job_id, until = excluded.until

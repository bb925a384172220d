-- Guards as they were. Index: the primary key.
INSERT INTO holdfast.dedup (dedup_key, job_id, until) VALUES ($1, $2::uuid, $3) ON CONFLICT DO NOTHING

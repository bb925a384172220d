-- Steps as they were recorded. Index: the primary key.
INSERT INTO holdfast.step (job_id, name, answer, attempt, recorded_at) VALUES ($1::uuid, $2, $3, $4, $5)
ON CONFLICT DO NOTHING

-- Keep how far a lane has come.
INSERT INTO holdfast.fair_lane (queue, job_type, position) VALUES ($1, $2, $3)
ON CONFLICT (queue, job_type) DO UPDATE SET position = excluded.position

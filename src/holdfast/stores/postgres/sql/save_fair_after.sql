-- Keep where the next look at the keys of a lane begins.
INSERT INTO holdfast.fair_lane (queue, job_type, position, after_key) VALUES ($1, $2, 0, $3)
ON CONFLICT (queue, job_type) DO UPDATE SET after_key = excluded.after_key

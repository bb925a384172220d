-- Keep how far keys of a lane have come, and when.
INSERT INTO holdfast.fair_key (queue, job_type, fairness_key, position, turn_at)
SELECT $1, $2, key, position, $5 FROM unnest($3::text[], $4::bigint[]) AS n (key, position)
ON CONFLICT (queue, job_type, fairness_key) DO UPDATE SET position = excluded.position, turn_at = excluded.turn_at

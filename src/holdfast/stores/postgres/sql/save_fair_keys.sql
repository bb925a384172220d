-- Keep how far keys of a lane have come.
INSERT INTO holdfast.fair_key (queue, job_type, fairness_key, position)
SELECT $1, $2, key, position FROM unnest($3::text[], $4::bigint[]) AS n (key, position)
ON CONFLICT (queue, job_type, fairness_key) DO UPDATE SET position = excluded.position

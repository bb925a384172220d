-- A page of recorded steps after ($1, $2). Index: the primary key.
SELECT job_id::text, name, answer, attempt, recorded_at FROM holdfast.step
WHERE (job_id, name) > ($1::uuid, $2::text) ORDER BY job_id, name LIMIT $3

-- name: beat
-- Register a worker, or say that it lives.
INSERT INTO backstay.worker (worker_id, heartbeat_at, details) VALUES ($1, $2, $3)
ON CONFLICT (worker_id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, details = excluded.details

-- name: forget
-- Workers that are gone.
DELETE FROM backstay.worker WHERE worker_id = ANY ($1::text[])

-- name: announce
-- What apps say about their types.
INSERT INTO backstay.job_type (job_type, details) SELECT * FROM unnest($1::text[], $2::text[])
ON CONFLICT (job_type) DO UPDATE SET details = excluded.details

-- name: step
-- The recorded answer of a step.
SELECT answer FROM backstay.step WHERE job_id = $1::uuid AND name = $2

-- name: beat
-- Register a worker, or say that it lives.
INSERT INTO backstay.worker (worker_id, heartbeat_at, details) VALUES ($1, $2, $3)
ON CONFLICT (worker_id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, details = excluded.details

-- name: forget
-- Workers that are gone since $2, and the end of those that are gone since $3.
WITH gone AS (
    DELETE FROM backstay.worker WHERE worker_id = ANY ($1::text[]) RETURNING worker_id, heartbeat_at, details
), outdated AS (
    DELETE FROM backstay.former_worker WHERE left_at <= $3 AND worker_id NOT IN (SELECT worker_id FROM gone)
)
INSERT INTO backstay.former_worker (worker_id, left_at, heartbeat_at, details)
SELECT worker_id, $2, heartbeat_at, details FROM gone
ON CONFLICT (worker_id) DO UPDATE
SET left_at = excluded.left_at, heartbeat_at = excluded.heartbeat_at, details = excluded.details

-- name: announce
-- Types as they were announced, in order of name. One that is stored already is left to lock_types and save_types.
INSERT INTO backstay.job_type (job_type, details) SELECT * FROM unnest($1::text[], $2::text[])
ON CONFLICT (job_type) DO NOTHING

-- name: lock_types
-- Stored types, locked until the transaction ends. In order of name, so that two announcements cannot deadlock.
SELECT details FROM backstay.job_type WHERE job_type = ANY ($1::text[]) ORDER BY job_type FOR UPDATE

-- name: save_types
-- Replace types that lock_types has locked, or that are restored.
INSERT INTO backstay.job_type (job_type, details) SELECT * FROM unnest($1::text[], $2::text[])
ON CONFLICT (job_type) DO UPDATE SET details = excluded.details

-- name: output
-- Parts of the latest take of a job with entries after ($2, $3, $4). Index: the primary key.
SELECT o.attempt, o.take, o.first, o.last, o.size, o.written_at, o.text
FROM (SELECT attempt, take FROM backstay.output WHERE job_id = $1::uuid ORDER BY attempt DESC, take DESC LIMIT 1) AS latest
CROSS JOIN LATERAL (
    SELECT * FROM backstay.output AS o
    WHERE o.job_id = $1::uuid AND o.attempt = latest.attempt AND o.take = latest.take
      AND o.last > CASE WHEN latest.attempt = $2::integer AND latest.take = $3::integer THEN $4::integer ELSE 0 END
    ORDER BY o.last LIMIT $5
) AS o

-- name: output_end
-- The end of the output of a job. Index: the primary key.
SELECT attempt, take, last, size FROM backstay.output
WHERE job_id = $1::uuid ORDER BY attempt DESC, take DESC, last DESC LIMIT 1

-- name: step
-- The recorded answer of a step.
SELECT answer FROM backstay.step WHERE job_id = $1::uuid AND kind = $2 AND name = $3

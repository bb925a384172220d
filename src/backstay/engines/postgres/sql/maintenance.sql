-- name: promote
-- Make due jobs pending, the longest due first. Index: job_due.
WITH due AS MATERIALIZED (
    SELECT seq FROM backstay.job
    WHERE status IN ('scheduled', 'retrying') AND scheduled_for <= $1
    ORDER BY scheduled_for
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
UPDATE backstay.job AS j
SET status = 'pending', version = j.version + 1, updated_at = $1,
    history = backstay.trimmed(j.history, j.version) || E'\n'
        || backstay.event(j.version + 1, $1, 'due', j.status, 'pending', j.attempt, NULL, NULL)
FROM due WHERE j.seq = due.seq AND (j.status || '') IN ('scheduled', 'retrying')

-- name: next_due
-- When the next scheduled or retrying job is due. Index: job_due.
SELECT scheduled_for FROM backstay.job WHERE status IN ('scheduled', 'retrying') ORDER BY scheduled_for LIMIT 1

-- name: staged_any
-- Whether anything is staged at all, or named: mostly not, and then there is nothing to unpack or to remove.
SELECT EXISTS (SELECT FROM backstay.staged) OR EXISTS (SELECT FROM backstay.unpack_due)

-- name: change_queue
-- Change the settings of a queue. Pausing a paused queue keeps who paused it first, and when.
INSERT INTO backstay.queue AS q (name, paused_at, paused_by, pause_reason, max_pending)
VALUES ($1, CASE WHEN $2 THEN $5::bigint END, CASE WHEN $2 THEN $3 END, CASE WHEN $2 THEN $4 END, nullif($6::integer, 0))
ON CONFLICT (name) DO UPDATE SET
    paused_at = CASE WHEN $2 THEN coalesce(q.paused_at, $5) WHEN NOT $2 THEN NULL ELSE q.paused_at END,
    paused_by = CASE WHEN $2 AND q.paused_at IS NULL THEN $3 WHEN NOT $2 THEN NULL ELSE q.paused_by END,
    pause_reason = CASE WHEN $2 AND q.paused_at IS NULL THEN $4 WHEN NOT $2 THEN NULL ELSE q.pause_reason END,
    max_pending = CASE WHEN $6 IS NULL THEN q.max_pending ELSE nullif($6, 0) END
RETURNING name, paused_at, paused_by, pause_reason, max_pending

-- name: forget_queues
-- Delete queues without settings.
DELETE FROM backstay.queue WHERE paused_at IS NULL AND max_pending IS NULL

-- name: queues
-- Queues with settings.
SELECT name, paused_at, paused_by, pause_reason, max_pending FROM backstay.queue ORDER BY name

-- name: schedule_version
-- Whether there is a schedule of this name, and how many there are.
SELECT (SELECT version FROM backstay.schedule WHERE name = $1), (SELECT count(*) FROM backstay.schedule)

-- name: save_schedule
-- Store a schedule whole; $15 is the version to replace, NULL where there must be none yet.
INSERT INTO backstay.schedule AS s (name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at,
    version, paused_at, paused_by, last_at, last_job_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
ON CONFLICT (name) DO UPDATE SET cron = excluded.cron, timezone = excluded.timezone, missed = excluded.missed,
    job_type = excluded.job_type, template = excluded.template, updated_at = excluded.updated_at,
    next_at = excluded.next_at, version = excluded.version, paused_at = excluded.paused_at,
    paused_by = excluded.paused_by
WHERE s.version = $15::integer

-- name: drop_schedule
-- Remove a schedule.
DELETE FROM backstay.schedule WHERE name = $1

-- name: schedules
-- All schedules.
SELECT name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at, version, paused_at, paused_by,
    last_at, last_job_id
FROM backstay.schedule ORDER BY name COLLATE "C"

-- name: schedules_named
-- The schedules of these names. Index: the primary key.
SELECT name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at, version, paused_at, paused_by,
    last_at, last_job_id
FROM backstay.schedule WHERE name = ANY ($1::text[]) ORDER BY name COLLATE "C"

-- name: fire
-- Move a schedule on past its ticks, if it is still as it was read.
UPDATE backstay.schedule
SET next_at = $4, last_at = coalesce($5::bigint, last_at), last_job_id = coalesce($6::text, last_job_id)
WHERE name = $1 AND version = $2 AND next_at = $3 AND paused_at IS NULL

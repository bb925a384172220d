-- name: standings
-- Where the jobs in ?1 stand, with all that a decision needs. Indexes: the keys; the place in `ready` by its whole line.
SELECT {standing_columns}
FROM job AS j
{joined}
WHERE j.job_id IN (SELECT value FROM json_each(?1))

-- name: enter_ready
-- A job waits for a worker.
INSERT INTO ready (seq, fair, {ready_columns}) VALUES (:key, :fairness_key IS NOT NULL, {ready_values})

-- name: enter_later
-- A job waits for its time.
INSERT INTO later (seq, {later_columns}) VALUES (:key, {later_values})

-- name: enter_waiting
-- A job waits for others.
INSERT INTO waiting (seq, {waiting_columns}) VALUES (:key, {waiting_values})

-- name: enter_ended
-- A job has ended.
INSERT INTO ended (seq, {ended_columns}) VALUES (:key, {ended_values})

-- name: leave_ready
-- A job no longer waits for a worker. Index: the key, which is the line.
DELETE FROM ready
WHERE queue = ?1 AND job_type = ?2 AND fair = ?3 AND parked = ?4 AND priority = ?5 AND scheduled_for = ?6 AND job_id = ?7

-- name: revise
-- A job that waits has another payload: :version of it. Index: the key.
UPDATE job SET payload = :payload, payload_version = :version WHERE seq = :seq

-- name: write_detail
-- Write what is not plain about a job; of the last ones, NULL keeps what is stored.
INSERT INTO detail (seq, {detail_columns}) VALUES (:key, {detail_values})
ON CONFLICT (seq) DO UPDATE SET {detail_changes}

-- name: write_event
-- Store an event of a job's history.
INSERT INTO event (seq, {event_columns}) VALUES (:seq, {event_values})

-- name: events_of
-- The stored history of the jobs in ?1. Index: the primary key.
SELECT seq, {history_columns}
FROM event
WHERE seq IN (SELECT value FROM json_each(?1))
ORDER BY seq, version

-- name: latest_of
-- The last stored events of ?1, up to ?2, the newest first. Index: the primary key.
SELECT event, attempt, token FROM event WHERE seq = ?1 ORDER BY version DESC LIMIT ?2

-- name: awaited_waiting
-- The jobs in ?1 have someone who waits on them: their completion leaves the common path. Four statements, one for each
-- place that a job may still leave by itself. Index: the key.
UPDATE waiting SET awaited = 1 WHERE seq IN (SELECT value FROM json_each(?1))

-- name: awaited_later
-- See awaited_waiting. Index: the key.
UPDATE later SET awaited = 1 WHERE seq IN (SELECT value FROM json_each(?1))

-- name: awaited_running
-- See awaited_waiting. Index: the key.
UPDATE running SET awaited = 1 WHERE seq IN (SELECT value FROM json_each(?1))

-- name: lines_of
-- The keys of the jobs in ?1 in `ready`, of those that are pending. Indexes: the keys.
SELECT p.queue, p.job_type, p.fair, p.parked, p.priority, p.scheduled_for, p.job_id
FROM json_each(?1) AS each CROSS JOIN job AS j ON j.seq = each.value
{joined}
WHERE p.seq IS NOT NULL

-- name: awaited_ready
-- See awaited_waiting. Index: the key, which is the line.
UPDATE ready SET awaited = 1
WHERE queue = ?1 AND job_type = ?2 AND fair = ?3 AND parked = ?4 AND priority = ?5 AND scheduled_for = ?6 AND job_id = ?7

-- name: leave_later
-- A job leaves its place. Index: the key.
DELETE FROM later WHERE seq = ?1

-- name: leave_waiting
-- See leave_later. Index: the key.
DELETE FROM waiting WHERE seq = ?1

-- name: leave_running
-- See leave_later. Index: the key.
DELETE FROM running WHERE seq = ?1

-- name: leave_ended
-- See leave_later. Index: the key.
DELETE FROM ended WHERE seq = ?1

-- name: stay_running
-- A job that runs has a new version, and perhaps (?2) another priority: then its completion leaves the common path, which
-- takes it for one of the kind that it was when it was claimed. Index: the key.
UPDATE running SET version = ?1, awaited = max(awaited, ?2) WHERE seq = ?3

-- name: trim_history
-- Drop the events of a job from version ?2 to ?3. Index: the key.
DELETE FROM event WHERE seq = ?1 AND version BETWEEN ?2 AND ?3

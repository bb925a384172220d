-- name: due
-- Jobs that are due, the longest due first, as one JSON value. Index: later_due.
SELECT json_group_array(seq) FROM (
    SELECT seq FROM later INDEXED BY later_due WHERE scheduled_for <= :now ORDER BY scheduled_for LIMIT :limit)

-- name: promote_ready
-- The jobs in ?1, which are due, wait for a worker. Indexes: the keys.
INSERT INTO ready (queue, job_type, fair, parked, priority, scheduled_for, job_id, seq, payload_version, suspicion,
    attempt, failures, version, awaited, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros,
    rate_cost, fairness_key, fairness_weight, expires_at)
SELECT j.queue, j.job_type, j.fairness_key IS NOT NULL, 0, l.priority, l.scheduled_for, j.job_id, j.seq,
    j.payload_version, coalesce(d.suspicion, 0), l.attempt, l.failures, l.version + 1, l.awaited, j.concurrency_key,
    j.concurrency_limit, j.rate_key, j.rate_count, j.rate_micros, coalesce(j.rate_cost, 1), j.fairness_key,
    coalesce(j.fairness_weight, 1), l.expires_at
FROM json_each(?1) AS each CROSS JOIN later AS l ON l.seq = each.value CROSS JOIN job AS j ON j.seq = l.seq
LEFT JOIN detail AS d ON d.seq = l.seq

-- name: promote_event
-- Tell of the jobs in ?1 that they were due at ?2. Index: the key.
INSERT INTO event (seq, version, at, event, source, target, attempt)
SELECT seq, version + 1, ?2, 'due', status, 'pending', attempt FROM later WHERE seq IN (SELECT value FROM json_each(?1))

-- name: promote_tally
-- How many of the jobs in ?1 leave each state, by kind. Index: the key.
SELECT job_type, queue, priority, status, count(*) FROM later WHERE seq IN (SELECT value FROM json_each(?1)) GROUP BY 1, 2, 3, 4

-- name: promote_long
-- Which of the jobs in ?1 have a history of more than ?2 events, and how many. Index: the key.
SELECT seq, version + 1 FROM later WHERE seq IN (SELECT value FROM json_each(?1)) AND version >= ?2

-- name: promote_leave
-- The jobs in ?1 are no longer for later. Index: the key.
DELETE FROM later WHERE seq IN (SELECT value FROM json_each(?1))

-- name: next_due
-- When the next scheduled or retrying job is due, or a pause is over. Index: later_due; `queue` and `run_limit` have only
-- what someone has changed.
SELECT min(due) FROM (
    SELECT min(scheduled_for) AS due FROM later INDEXED BY later_due
    UNION ALL SELECT min(paused_until) FROM queue
    UNION ALL SELECT min(paused_until) FROM run_limit)

-- name: overdue
-- Jobs that have not started by ?1 and were to, up to ?2. Indexes: ready_expiring, later_expiring, waiting_expiring.
SELECT j.job_id FROM (
    SELECT * FROM (SELECT seq FROM ready INDEXED BY ready_expiring WHERE expires_at <= ?1 LIMIT ?2)
    UNION ALL SELECT * FROM (SELECT seq FROM later INDEXED BY later_expiring WHERE expires_at <= ?1 LIMIT ?2)
    UNION ALL SELECT * FROM (SELECT seq FROM waiting INDEXED BY waiting_expiring WHERE expires_at <= ?1 LIMIT ?2)
    LIMIT ?2
) AS found CROSS JOIN job AS j ON j.seq = found.seq

-- name: misplaced
-- Of the jobs that arrived last and of those in the line or in another place, up to ?1 of each: how many; how many have no
-- place, more than one, or one in the line where it is not looked for; how many places have no job; and one of the jobs.
-- Indexes: the keys.
WITH looked (seq) AS (
    SELECT * FROM (SELECT seq FROM job ORDER BY seq DESC LIMIT ?1)
    UNION SELECT * FROM (SELECT seq FROM ended ORDER BY seq DESC LIMIT ?1)
    UNION SELECT * FROM (SELECT seq FROM ready LIMIT ?1)
    UNION SELECT * FROM (SELECT seq FROM running LIMIT ?1)
    UNION SELECT * FROM (SELECT seq FROM later LIMIT ?1)
    UNION SELECT * FROM (SELECT seq FROM waiting LIMIT ?1)
), line (seq, rows) AS MATERIALIZED (
    SELECT seq, count(*) FROM (SELECT seq FROM ready LIMIT ?1) GROUP BY seq
)
SELECT count(*), count(*) FILTER (WHERE places = 0), count(*) FILTER (WHERE places > 1),
    count(*) FILTER (WHERE places = 1 AND strays), count(*) FILTER (WHERE job_id IS NULL),
    min(job_id) FILTER (WHERE places <> 1 OR strays)
FROM (
    SELECT j.job_id, CASE WHEN j.seq IS NOT NULL THEN
            (e.seq IS NOT NULL) + (r.seq IS NOT NULL) + (l.seq IS NOT NULL) + (w.seq IS NOT NULL)
            + max(p.seq IS NOT NULL, coalesce(line.rows, 0))
        END AS places, line.rows IS NOT NULL AND p.seq IS NULL AS strays
    FROM looked LEFT JOIN job AS j ON j.seq = looked.seq LEFT JOIN line ON line.seq = j.seq
    {joined}
)

-- name: save_schedule
-- Store a schedule whole; :expected is the version to replace, NULL where there must be none yet.
INSERT INTO schedule (name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at, version,
    paused_at, paused_by, last_at, last_job_id, overlap, jitter_micros, starts_at, ends_at, declared_by, skipped, skipped_at)
VALUES (:name, :cron, :timezone, :missed, :job_type, :template, :created_at, :updated_at, :next_at, :version,
    :paused_at, :paused_by, :last_at, :last_job_id, :overlap, :jitter_micros, :starts_at, :ends_at, :declared_by, :skipped,
    :skipped_at)
ON CONFLICT (name) DO UPDATE SET cron = excluded.cron, timezone = excluded.timezone, missed = excluded.missed,
    job_type = excluded.job_type, template = excluded.template, updated_at = excluded.updated_at,
    next_at = excluded.next_at, version = excluded.version, paused_at = excluded.paused_at,
    paused_by = excluded.paused_by, overlap = excluded.overlap, jitter_micros = excluded.jitter_micros,
    starts_at = excluded.starts_at, ends_at = excluded.ends_at, declared_by = excluded.declared_by
WHERE version = :expected

-- name: fire
-- Move a schedule on past its ticks, if it is still as it was read.
UPDATE schedule
SET next_at = :next_at, last_at = coalesce(:last_at, last_at), last_job_id = coalesce(:last_job_id, last_job_id),
    skipped = skipped + :skipped, skipped_at = coalesce(:skipped_at, skipped_at)
WHERE name = :name AND version = :version AND next_at = :due_at AND paused_at IS NULL

-- name: fired_into
-- The last tick made no job of its own: its dedup key belongs to this one.
UPDATE schedule SET last_job_id = ?2 WHERE name = ?1

-- name: release_needed
-- Whether anything is left to release, to unpark, to store or to forget. Indexes: ready_parked, the keys.
SELECT EXISTS (SELECT 1 FROM release_due) OR EXISTS (SELECT 1 FROM ready INDEXED BY ready_parked WHERE parked = 1)
    OR EXISTS (SELECT 1 FROM fair_key) OR EXISTS (SELECT 1 FROM staged) OR EXISTS (SELECT 1 FROM unpack_due)

-- name: beat
-- Store a worker as it is now.
INSERT OR REPLACE INTO worker (worker_id, heartbeat_at, details) VALUES (?1, ?2, ?3)

-- name: remember_worker
-- Keep a worker that has left at ?2, as it last was. Index: the key.
INSERT OR REPLACE INTO former_worker (worker_id, left_at, heartbeat_at, details)
SELECT worker_id, ?2, heartbeat_at, details FROM worker WHERE worker_id = ?1

-- name: drop_worker
-- Delete a worker. Index: the key.
DELETE FROM worker WHERE worker_id = ?1

-- name: forget_workers
-- Delete the workers that have left up to ?1. Reads all of `former_worker`, which has those of a day.
DELETE FROM former_worker WHERE left_at <= ?1

-- name: type_of
-- What is known about a type. Index: the key.
SELECT details FROM job_type WHERE job_type = ?1

-- name: save_type
-- Store what is known about a type.
INSERT OR REPLACE INTO job_type (job_type, details) VALUES (?1, ?2)

-- name: schedules_named
-- The schedules in ?1, by name. Index: the key.
SELECT {schedule_columns} FROM schedule WHERE name IN (SELECT value FROM json_each(?1)) ORDER BY name

-- name: schedules_after
-- A page of schedules by name. Index: the key.
SELECT {schedule_columns} FROM schedule WHERE name > ?1 ORDER BY name LIMIT ?2

-- name: upcoming
-- The schedules that tick next, without those that are paused. Index: schedule_next.
SELECT {schedule_columns} FROM schedule INDEXED BY schedule_next WHERE paused_at IS NULL ORDER BY next_at, name LIMIT ?1

-- name: version_of
-- The version of a schedule. Index: the key.
SELECT version FROM schedule WHERE name = ?1

-- name: drop_schedule
-- Delete a schedule; with a version in ?2, only if it is at this version. Index: the key.
DELETE FROM schedule WHERE name = ?1 AND version = coalesce(?2, version)

-- name: save_declaration
-- Store what an app declares, if it is stored at the version ?4, or not at all if that is NULL. Index: the key.
INSERT INTO declaration (origin, version, details)
SELECT ?1, ?2, ?3 WHERE ?4 IS NULL OR EXISTS (SELECT 1 FROM declaration WHERE origin = ?1)
ON CONFLICT (origin) DO UPDATE SET version = excluded.version, details = excluded.details WHERE version = ?4

-- name: declarations
-- What all apps declare. Index: the key.
SELECT details FROM declaration ORDER BY origin

-- name: save_queue
-- Keep the settings of a queue.
INSERT OR REPLACE INTO queue ({queue_columns}) VALUES ({queue_values})

-- name: drop_queue
-- Nothing is set for a queue. Index: the key.
DELETE FROM queue WHERE name = ?1

-- name: save_limit
-- Keep what was set for a type or a key.
INSERT OR REPLACE INTO run_limit ({limit_columns}) VALUES ({limit_values})

-- name: drop_limit
-- Nothing is set for a type or a key. Index: the key.
DELETE FROM run_limit WHERE of = ?1 AND name = ?2

-- name: pauses_over
-- Queues, types and keys whose pause is over at ?1. Reads all of both tables, which have only what someone has changed.
SELECT 'queue', name FROM queue WHERE paused_until <= ?1
UNION ALL SELECT of, name FROM run_limit WHERE paused_until <= ?1

-- name: promote
-- Make due jobs pending, the longest due first. Index: later_due. What is promoted is what was deleted.
WITH due AS MATERIALIZED (
    SELECT ctid AS place_of FROM backstay.later
    WHERE scheduled_for <= $1
    ORDER BY scheduled_for
    LIMIT $2
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM backstay.later AS l USING due WHERE l.ctid = due.place_of RETURNING l.*
), ready AS (
    INSERT INTO backstay.ready (job_id, queue, job_type, priority, scheduled_for, payload_version, line, suspicion,
        findable, child, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros, rate_cost, fairness_key,
        fairness_weight, attempt, failures, version, awaited, expires_at)
    SELECT j.job_id, j.queue, j.job_type, j.priority, j.scheduled_for, j.payload_version, j.line, j.suspicion,
        j.findable, j.child, j.concurrency_key, j.concurrency_limit, j.rate_key, j.rate_count, j.rate_micros, j.rate_cost,
        j.fairness_key, j.fairness_weight, g.attempt, g.failures, g.version + 1, g.awaited, g.expires_at
    FROM gone AS g CROSS JOIN LATERAL (SELECT * FROM backstay.claimable WHERE job_id = g.job_id OFFSET 0) AS j
), tallied AS (
    INSERT INTO backstay.tally AS t (shard, job_type, queue, priority, status, count)
    SELECT pg_backend_pid() % 64, job_type, queue, priority, status, -count(*) FROM gone
    GROUP BY job_type, queue, priority, status
    ORDER BY job_type, queue, priority, status
    ON CONFLICT (shard, job_type, queue, priority, status) DO UPDATE SET count = t.count + excluded.count
)
INSERT INTO backstay.event (job_id, version, attempt, at, event, source, target)
SELECT job_id, version + 1, attempt, $1, 'due', status, 'pending' FROM gone

-- name: next_due
-- When the next scheduled or retrying job is due, or a pause is over. Index: later_due; `queue` and `run_limit` have only
-- what someone has changed.
SELECT least((SELECT scheduled_for FROM backstay.later ORDER BY scheduled_for LIMIT 1),
    (SELECT min(paused_until) FROM backstay.queue), (SELECT min(paused_until) FROM backstay.run_limit))

-- name: staged_any
-- Whether anything is staged at all, or named: mostly not, and then there is nothing to unpack or to remove.
SELECT EXISTS (SELECT FROM backstay.staged) OR EXISTS (SELECT FROM backstay.unpack_due)

-- name: open_queue
-- The settings of a queue, locked: there is a row of it from here on.
INSERT INTO backstay.queue AS q (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = q.name
RETURNING {queue_columns}

-- name: save_queue
-- Keep the settings of a queue.
UPDATE backstay.queue SET ({queue_columns}) = ROW ({queue_places}) WHERE name = $1

-- name: drop_queue
-- Nothing is set for a queue.
DELETE FROM backstay.queue WHERE name = $1

-- name: queues
-- Queues with settings.
SELECT {queue_columns} FROM backstay.queue ORDER BY name

-- name: open_limit
-- What was set at run time for a type or a key, locked: there is a row of it from here on.
INSERT INTO backstay.run_limit AS l (of, name) VALUES ($1, $2) ON CONFLICT (of, name) DO UPDATE SET name = l.name
RETURNING {limit_columns}

-- name: save_limit
-- Keep what was set for a type or a key.
UPDATE backstay.run_limit SET ({limit_columns}) = ROW ({limit_places}) WHERE of = $1 AND name = $2

-- name: drop_limit
-- Nothing is set for a type or a key.
DELETE FROM backstay.run_limit WHERE of = $1 AND name = $2

-- name: limits
-- What was set at run time for types and keys.
SELECT {limit_columns} FROM backstay.run_limit ORDER BY of, name

-- name: limits_named
-- What was set at run time for types and keys of these names. Index: the key.
SELECT {limit_columns} FROM backstay.run_limit WHERE of IN ('key', 'type') AND name = ANY ($1::text[])

-- name: types_running
-- How many jobs of these types run. Reads all of `running`, which is short.
SELECT t.name, (
    SELECT count(*) FROM backstay.running AS r JOIN backstay.job AS j ON j.job_id = r.job_id WHERE j.job_type = t.name)
FROM unnest($1::text[]) AS t (name)

-- name: parked_limit
-- What a job that is parked by a key was submitted with. Index: ready_parked.
SELECT concurrency_limit FROM backstay.ready WHERE parked = 1 AND concurrency_key = $1 LIMIT 1

-- name: look_again
-- Have the parked jobs of a rate key checked.
UPDATE backstay.rate SET due_at = $2 WHERE rate_key = $1 AND due_at IS NOT NULL

-- name: pauses_over
-- Queues, types and keys whose pause is over at $1. Reads all of both tables, which have only what someone has changed.
SELECT 'queue' AS of, name FROM backstay.queue WHERE paused_until <= $1
UNION ALL SELECT of, name FROM backstay.run_limit WHERE paused_until <= $1

-- name: schedule_version
-- Whether there is a schedule of this name.
SELECT version FROM backstay.schedule WHERE name = $1

-- name: save_schedule
-- Store a schedule whole; $22 is the version to replace, NULL where there must be none yet.
INSERT INTO backstay.schedule AS s (name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at,
    version, paused_at, paused_by, last_at, last_job_id, overlap, jitter_micros, starts_at, ends_at, declared_by, skipped,
    skipped_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
ON CONFLICT (name) DO UPDATE SET cron = excluded.cron, timezone = excluded.timezone, missed = excluded.missed,
    job_type = excluded.job_type, template = excluded.template, updated_at = excluded.updated_at,
    next_at = excluded.next_at, version = excluded.version, paused_at = excluded.paused_at,
    paused_by = excluded.paused_by, overlap = excluded.overlap, jitter_micros = excluded.jitter_micros,
    starts_at = excluded.starts_at, ends_at = excluded.ends_at, declared_by = excluded.declared_by
WHERE s.version = $22::integer

-- name: drop_schedule
-- Remove a schedule; with a version in $2, only if it is at this version. Index: the primary key.
DELETE FROM backstay.schedule WHERE name = $1 AND version = coalesce($2::integer, version)

-- name: save_declaration
-- Store what an app declares, if it is stored at the version $4, or not at all if that is NULL. Index: the primary key.
INSERT INTO backstay.declaration AS d (origin, version, details)
SELECT $1, $2::integer, $3
WHERE $4::integer IS NULL OR EXISTS (SELECT 1 FROM backstay.declaration WHERE origin = $1)
ON CONFLICT (origin) DO UPDATE SET version = excluded.version, details = excluded.details WHERE d.version = $4::integer

-- name: declarations
-- What all apps declare. Index: the primary key.
SELECT details FROM backstay.declaration ORDER BY origin

-- name: schedules
-- The first $2 schedules after a name, NULL for all. Index: the primary key.
SELECT name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at, version, paused_at, paused_by,
    last_at, last_job_id, overlap, jitter_micros, starts_at, ends_at, declared_by, skipped, skipped_at
FROM backstay.schedule WHERE name > $1 ORDER BY name LIMIT $2::bigint

-- name: schedules_named
-- The schedules of these names. Index: the primary key.
SELECT name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at, version, paused_at, paused_by,
    last_at, last_job_id, overlap, jitter_micros, starts_at, ends_at, declared_by, skipped, skipped_at
FROM backstay.schedule WHERE name = ANY ($1::text[]) ORDER BY name COLLATE "C"

-- name: upcoming
-- The first schedules by when they tick next. Index: schedule_next.
SELECT name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at, version, paused_at, paused_by,
    last_at, last_job_id, overlap, jitter_micros, starts_at, ends_at, declared_by, skipped, skipped_at
FROM backstay.schedule WHERE paused_at IS NULL ORDER BY next_at, name LIMIT $1

-- name: fire
-- Move a schedule on past its ticks, if it is still as it was read.
UPDATE backstay.schedule
SET next_at = $4, last_at = coalesce($5::bigint, last_at), last_job_id = coalesce($6::text, last_job_id),
    skipped = skipped + $7::bigint, skipped_at = coalesce($8::bigint, skipped_at)
WHERE name = $1 AND version = $2 AND next_at = $3 AND paused_at IS NULL

-- name: fired_into
-- The last tick made no job of its own: its dedup key belongs to this one.
UPDATE backstay.schedule SET last_job_id = $2::text WHERE name = $1

-- name: misplaced
-- Of the newest jobs and of those in the line or in another place, up to $1 of each: how many; how many have no place, more
-- than one, or one in the line where it is not looked for; how many places have no job; and one of the jobs. Indexes: the
-- keys, ready_line.
WITH line AS MATERIALIZED (
    SELECT job_id FROM backstay.ready LIMIT $1
), looked AS MATERIALIZED (
    (SELECT job_id FROM backstay.job ORDER BY job_id DESC LIMIT $1)
    UNION (SELECT job_id FROM backstay.ended ORDER BY job_id DESC LIMIT $1) UNION SELECT job_id FROM line
    UNION (SELECT job_id FROM backstay.running LIMIT $1) UNION (SELECT job_id FROM backstay.later LIMIT $1)
    UNION (SELECT job_id FROM backstay.waiting LIMIT $1)
), counted AS (
    SELECT j.job_id, j.job_id IS NULL AS is_lost, placed.places + greatest(placed.ready, coalesce(l.rows, 0)) AS places,
        l.rows > 0 AND placed.ready = 0 AS strays
    FROM looked AS n LEFT JOIN LATERAL (SELECT job_id FROM backstay.job WHERE job_id = n.job_id OFFSET 0) AS j ON true
    LEFT JOIN (SELECT job_id, count(*) AS rows FROM line GROUP BY job_id) AS l ON l.job_id = n.job_id
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE NOT in_line) AS places, count(*) FILTER (WHERE in_line) AS ready FROM (
            SELECT false AS in_line FROM backstay.ended WHERE job_id = n.job_id
            UNION ALL SELECT false FROM backstay.running WHERE job_id = n.job_id
            UNION ALL SELECT false FROM backstay.later WHERE job_id = n.job_id
            UNION ALL SELECT false FROM backstay.waiting WHERE job_id = n.job_id
            UNION ALL SELECT true FROM backstay.claimable AS j JOIN backstay.ready AS r
                ON r.line = ANY (CASE j.line WHEN 2 THEN '{2,4}' WHEN 1 THEN '{1,3}' ELSE '{0}' END::smallint[])
                AND r.queue = j.queue AND r.job_type = j.job_type AND r.priority = j.priority
                AND r.scheduled_for = j.scheduled_for AND r.job_id = j.job_id
            WHERE j.job_id = n.job_id) AS every
    ) AS placed
)
SELECT count(*), count(*) FILTER (WHERE NOT is_lost AND places = 0), count(*) FILTER (WHERE NOT is_lost AND places > 1),
    count(*) FILTER (WHERE NOT is_lost AND places = 1 AND strays), count(*) FILTER (WHERE is_lost),
    min(job_id::text) FILTER (WHERE NOT is_lost AND (places <> 1 OR strays))
FROM counted

-- name: applied
-- The migrations that were applied, the first one first.
SELECT number, name, breaking FROM backstay.migration ORDER BY number

-- name: relations
-- Which of the tables $2 there are in the schema $1, with their columns. One snapshot: another process may be migrating,
-- and commits all tables at once.
SELECT c.relname::text, ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = ANY($2)

-- name: settings
-- Settings of the server, as this session has them.
SELECT name, setting FROM pg_settings WHERE name = ANY ($1::text[])

-- name: role
-- As whom this session works.
SELECT current_user

-- name: dead_rows
-- Of the places in the schema $1, the one with most dead rows: how many live and dead ones, and how many seconds ago it
-- was vacuumed.
SELECT relname::text, n_live_tup, n_dead_tup,
    extract(epoch FROM clock_timestamp() - greatest(last_autovacuum, last_vacuum))::double precision
FROM pg_stat_all_tables
WHERE schemaname = $1 AND relname IN ('ready', 'running', 'later', 'waiting', 'ended')
ORDER BY n_dead_tup DESC, relname = 'ready' DESC LIMIT 1

-- name: oldest_transaction
-- The oldest transaction that holds back vacuum in this database: of a session, or prepared and abandoned.
SELECT extract(epoch FROM clock_timestamp() - since)::double precision, pid, application, state, name
FROM (
    SELECT xact_start AS since, pid, application_name AS application, state, usename::text AS name
    FROM pg_stat_activity
    WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type IN ('client backend', 'walsender')
      AND (datname = current_database() OR datname IS NULL)
    UNION ALL
    SELECT prepared, NULL, NULL, NULL, gid FROM pg_prepared_xacts WHERE database = current_database()
) AS held
ORDER BY since LIMIT 1

-- name: hidden_sessions
-- How many sessions of this database belong to roles that this one may not look at.
SELECT count(*) FROM pg_stat_activity WHERE backend_type IS NULL AND datname = current_database()

-- name: sessions
-- How many sessions there are, and how many of them are Backstay's.
SELECT count(*), count(*) FILTER (WHERE application_name = 'backstay') FROM pg_stat_activity WHERE datid IS NOT NULL

-- name: lanes
-- The asked lanes from queue ?1 and type ?2 on that have pending jobs, up to ?3, each with the first of those without a
-- fairness key that may start, or NULL; as one JSON value. Some seeks for each lane, whatever its length, and few for
-- those that are empty or foreign: whether a queue was asked for is decided before its jobs are searched, because as a
-- condition of that search it would be tried on every job. Asked are the queues and types in two temporary tables,
-- because a list cannot be searched. Index: the key.
WITH RECURSIVE lane (at) AS (
    SELECT * FROM (
        SELECT json_array(queue, job_type) FROM ready
        WHERE (queue, job_type) >= (?1, ?2) ORDER BY queue, job_type LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT json_array(queue, job_type) FROM ready
         WHERE queue = (SELECT name FROM asked_queue WHERE name = at ->> 0)
           AND job_type >= (SELECT name FROM asked_type WHERE name > at ->> 1 ORDER BY name LIMIT 1)
         ORDER BY job_type LIMIT 1),
        (SELECT json_array(queue, job_type) FROM ready
         WHERE queue >= (SELECT name FROM asked_queue WHERE name > at ->> 0 ORDER BY name LIMIT 1)
         ORDER BY queue, job_type LIMIT 1))
    FROM lane WHERE at IS NOT NULL
)
SELECT json_group_array(json_array(queue, job_type, json(head))) FROM (
    SELECT at ->> 0 AS queue, at ->> 1 AS job_type, (
        SELECT json_array(priority, scheduled_for, job_id) FROM ready AS r
        WHERE r.queue = at ->> 0 AND r.job_type = at ->> 1 AND r.fair = 0 AND r.parked = 0
        ORDER BY priority DESC, scheduled_for, job_id LIMIT 1) AS head
    FROM lane
    WHERE at IS NOT NULL AND queue IN (SELECT name FROM asked_queue) AND job_type IN (SELECT name FROM asked_type)
    LIMIT ?3)

-- name: fair_lanes
-- The same of jobs with a fairness key, and only the lanes that have some. Index: ready_fair.
WITH RECURSIVE lane (at) AS (
    SELECT * FROM (
        SELECT json_array(queue, job_type) FROM ready INDEXED BY ready_fair
        WHERE fairness_key IS NOT NULL AND (queue, job_type) >= (?1, ?2) ORDER BY queue, job_type LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT json_array(queue, job_type) FROM ready INDEXED BY ready_fair
         WHERE fairness_key IS NOT NULL AND queue = (SELECT name FROM asked_queue WHERE name = at ->> 0)
           AND job_type >= (SELECT name FROM asked_type WHERE name > at ->> 1 ORDER BY name LIMIT 1)
         ORDER BY job_type LIMIT 1),
        (SELECT json_array(queue, job_type) FROM ready INDEXED BY ready_fair
         WHERE fairness_key IS NOT NULL AND queue >= (SELECT name FROM asked_queue WHERE name > at ->> 0 ORDER BY name LIMIT 1)
         ORDER BY queue, job_type LIMIT 1))
    FROM lane WHERE at IS NOT NULL
)
SELECT json_group_array(json_array(queue, job_type, json(head))) FROM (
    SELECT at ->> 0 AS queue, at ->> 1 AS job_type, (
        SELECT json_array(priority, scheduled_for, job_id) FROM ready AS r INDEXED BY ready_fair
        WHERE r.fairness_key IS NOT NULL AND r.queue = at ->> 0 AND r.job_type = at ->> 1 AND r.parked = 0
        ORDER BY priority DESC, fairness_key, scheduled_for, job_id LIMIT 1) AS head
    FROM lane
    WHERE at IS NOT NULL AND queue IN (SELECT name FROM asked_queue) AND job_type IN (SELECT name FROM asked_type)
    LIMIT ?3)

-- name: candidates
-- The head of one queue and type, in claim order, as one JSON value: a row per step would cost a GIL hand-over each.
-- None while the queue is paused; 'limited' instead of those of a type for which something was set at run time, unless
-- ?7 says that this is known; NULL where jobs with a fairness key wait: then the lane takes turns. Index: the key.
SELECT CASE
WHEN EXISTS (SELECT 1 FROM queue WHERE name = ?1 AND paused_at IS NOT NULL) THEN '[]'
WHEN NOT ?7 AND EXISTS (SELECT 1 FROM run_limit WHERE of = 'type' AND name = ?2) THEN 'limited'
WHEN NOT EXISTS (SELECT 1 FROM ready WHERE queue = ?1 AND job_type = ?2 AND fair = 1 AND parked = 0)
THEN (
    SELECT json_group_array(json_array({candidate_columns}))
    FROM (
        SELECT * FROM ready
        WHERE queue = ?1 AND job_type = ?2 AND fair = 0 AND parked = 0 AND payload_version <= ?4 AND suspicion <= ?5
          AND (expires_at IS NULL OR expires_at > ?6)
        ORDER BY priority DESC, scheduled_for, job_id
        LIMIT ?3
    ))
END

-- name: alone_candidates
-- The first jobs that wait to run alone, over the queues in ?1 and the types in ?2, which has the newest version that is
-- read of each; as one JSON value like `candidates`. Index: ready_alone, which holds nothing else, so that a scan past
-- other queues and types is short.
SELECT json_group_array(json_array({candidate_columns}))
FROM (
    SELECT * FROM ready INDEXED BY ready_alone
    WHERE suspicion = 2 AND parked = 0
      AND queue IN (SELECT value FROM json_each(?1))
      AND NOT EXISTS (SELECT 1 FROM queue AS q WHERE q.name = ready.queue AND q.paused_at IS NOT NULL)
      AND NOT EXISTS (
        SELECT 1 FROM run_limit AS l WHERE l.of = 'type' AND l.name = ready.job_type AND l.paused_at IS NOT NULL)
      AND job_type IN (SELECT key FROM json_each(?2))
      AND (payload_version = 1
        OR payload_version <= (SELECT value FROM json_each(?2) AS asked WHERE asked.key = ready.job_type))
      AND (expires_at IS NULL OR expires_at > ?4)
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?3)

-- name: wait_alone
-- How many jobs of each type in ?2 wait to run alone in the queues in ?1, among the first ?3; versions as in
-- `alone_candidates`. Index: ready_alone.
SELECT job_type, count(*) FROM (
    SELECT job_type FROM ready INDEXED BY ready_alone
    WHERE suspicion = 2 AND parked = 0
      AND queue IN (SELECT value FROM json_each(?1))
      AND NOT EXISTS (SELECT 1 FROM queue AS q WHERE q.name = ready.queue AND q.paused_at IS NOT NULL)
      AND NOT EXISTS (
        SELECT 1 FROM run_limit AS l WHERE l.of = 'type' AND l.name = ready.job_type AND l.paused_at IS NOT NULL)
      AND job_type IN (SELECT key FROM json_each(?2))
      AND (payload_version = 1
        OR payload_version <= (SELECT value FROM json_each(?2) AS asked WHERE asked.key = ready.job_type))
    LIMIT ?3)
GROUP BY job_type

-- name: claim
-- The jobs in :batch run: each is [seq, attempt, failures, version, awaited, concurrency key] of a row of `ready` that
-- this transaction has just read and removes.
INSERT INTO running (seq, attempt, failures, version, token, worker_id, worker_version, lease_expires_at, started_at,
    awaited, concurrency_key)
SELECT value ->> 0, (value ->> 1) + 1, value ->> 2, (value ->> 3) + 1, :token, :worker_id, :worker_version, :lease, :now,
    value ->> 4, value ->> 5
FROM json_each(:batch)

-- name: claim_head
-- The first :count jobs of a line run: those that `candidates` has just read in this transaction. Index: the key.
INSERT INTO running (seq, attempt, failures, version, token, worker_id, worker_version, lease_expires_at, started_at,
    awaited, concurrency_key)
SELECT seq, attempt + 1, failures, version + 1, :token, :worker_id, :worker_version, :lease, :now, awaited,
    concurrency_key
FROM ready
WHERE queue = :queue AND job_type = :job_type AND fair = 0 AND parked = 0
  AND payload_version <= :newest AND suspicion <= :suspicion
  AND (expires_at IS NULL OR expires_at > :at)
ORDER BY priority DESC, scheduled_for, job_id
LIMIT :count

-- name: leave_head
-- They no longer wait: those of the priority of the last of them, up to it. Index: the key.
DELETE FROM ready
WHERE queue = :queue AND job_type = :job_type AND fair = 0 AND parked = 0 AND priority = :priority
  AND (scheduled_for, job_id) <= (:due, :job_id) AND payload_version <= :newest AND suspicion <= :suspicion
  AND (expires_at IS NULL OR expires_at > :at)

-- name: leave_above
-- And those of higher priorities. Index: the key.
DELETE FROM ready
WHERE queue = :queue AND job_type = :job_type AND fair = 0 AND parked = 0 AND priority > :priority
  AND payload_version <= :newest AND suspicion <= :suspicion
  AND (expires_at IS NULL OR expires_at > :at)

-- name: claimed
-- What a worker needs of the jobs in ?1, as one JSON value in the order of ClaimedJob's fields, of which the last may be
-- left out: those of a job that is plain. Indexes: the keys.
SELECT json_group_array(CASE
    WHEN d.seq IS NULL AND {omitted_columns_have_defaults}
    THEN json_array({plainly_claimed_columns}) ELSE json_array({claimed_columns}) END)
FROM json_each(?1) AS each CROSS JOIN running AS r ON r.seq = each.value CROSS JOIN job AS j ON j.seq = r.seq
LEFT JOIN detail AS d ON d.seq = r.seq

-- name: claimed_before
-- What an earlier try of the same claim request took and still holds. Reads all of `running`, which is short.
SELECT json_group_array(seq) FROM running WHERE token = :token AND worker_id = :worker_id

-- name: ask_queues
-- The queues in ?1 are asked for, each named once.
INSERT INTO temp.asked_queue SELECT value FROM json_each(?1)

-- name: ask_no_paused
-- But not those that are paused. Reads all of `queue`, which has only queues that someone has changed. Index: the key.
DELETE FROM temp.asked_queue WHERE name IN (SELECT name FROM queue WHERE paused_at IS NOT NULL)

-- name: ask_types
-- The types in ?1 are asked for, each named once.
INSERT INTO temp.asked_type SELECT value FROM json_each(?1)

-- name: ask_no_paused_types
-- But not those that are paused. Reads the types of `run_limit`, which has only what someone has changed. Index: the key.
DELETE FROM temp.asked_type WHERE name IN (SELECT name FROM run_limit WHERE of = 'type' AND paused_at IS NOT NULL)

-- name: ask_no_queues
-- Empty what was asked before.
DELETE FROM temp.asked_queue

-- name: ask_no_types
-- See ask_no_queues.
DELETE FROM temp.asked_type

-- name: leave
-- A job that was claimed no longer waits. Index: the key, which is the line.
DELETE FROM ready
WHERE queue = ?1 AND job_type = ?2 AND fair = ?3 AND parked = 0 AND priority = ?4 AND scheduled_for = ?5 AND job_id = ?6

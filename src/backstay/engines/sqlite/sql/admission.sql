-- name: rate_due
-- The rate keys and rates whose parked jobs are to be checked by ?1, the longest due first, and those that were last
-- written by a clock which was ahead of ?2. Indexes: rate_due, rate_set.
SELECT * FROM (
    SELECT rate_key, rate_count, rate_micros FROM rate INDEXED BY rate_due WHERE due_at <= ?1 ORDER BY due_at LIMIT ?3)
UNION
SELECT * FROM (SELECT rate_key, rate_count, rate_micros FROM rate INDEXED BY rate_set WHERE set_at > ?2 LIMIT ?3)

-- name: rate_lanes
-- The queues, types and versions in which a rate key and rate have parked jobs: some seeks of ready_rate_parked for each.
WITH RECURSIVE each (lane) AS (
    SELECT * FROM (
        SELECT json_array(queue, job_type, payload_version) FROM ready INDEXED BY ready_rate_parked
        WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND parked = 2
        ORDER BY queue, job_type, payload_version LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT json_array(queue, job_type, payload_version) FROM ready INDEXED BY ready_rate_parked
         WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND parked = 2
           AND queue = lane ->> 0 AND job_type = lane ->> 1 AND payload_version > lane ->> 2
         ORDER BY payload_version LIMIT 1),
        (SELECT json_array(queue, job_type, payload_version) FROM ready INDEXED BY ready_rate_parked
         WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND parked = 2
           AND queue = lane ->> 0 AND job_type > lane ->> 1
         ORDER BY job_type, payload_version LIMIT 1),
        (SELECT json_array(queue, job_type, payload_version) FROM ready INDEXED BY ready_rate_parked
         WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND parked = 2 AND queue > lane ->> 0
         ORDER BY queue, job_type, payload_version LIMIT 1))
    FROM each WHERE lane IS NOT NULL
)
SELECT lane ->> 0, lane ->> 1, lane ->> 2 FROM each WHERE lane IS NOT NULL

-- name: rate_in_sight
-- How many pending jobs of a rate key and rate, queue, type and version are in sight and come no later in claim order
-- than the one of priority ?7, due time ?8 and id ?9, up to ?10. Index: ready_rate.
SELECT count(*) FROM (
    SELECT priority, scheduled_for, job_id FROM ready INDEXED BY ready_rate
    WHERE parked = 0 AND rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3
      AND queue = ?4 AND job_type = ?5 AND payload_version = ?6
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?10)
WHERE (-priority, scheduled_for, job_id) <= (-?7, ?8, ?9)

-- name: rate_unpark
-- Which jobs of a rate key and rate, queue, type and version to unpark, in claim order: each that is among the first ?7
-- of the parked and claimable ones; as one JSON value for `bring_back`. Claimable jobs that come later do not count.
-- Indexes: ready_rate_parked, ready_rate.
SELECT json_group_array(json_array(queue, job_type, fair, priority, scheduled_for, job_id)) FILTER (WHERE parked)
FROM (
    SELECT * FROM (
        SELECT * FROM (
            SELECT queue, job_type, fair, parked, priority, scheduled_for, job_id
            FROM ready INDEXED BY ready_rate_parked
            WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND parked = 2
              AND queue = ?4 AND job_type = ?5 AND payload_version = ?6
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT ?7)
        UNION ALL
        SELECT * FROM (
            SELECT queue, job_type, fair, parked, priority, scheduled_for, job_id FROM ready INDEXED BY ready_rate
            WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND parked = 0
              AND queue = ?4 AND job_type = ?5 AND payload_version = ?6
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT ?7))
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?7)

-- name: rate_save
-- Keep a bucket, and when its parked jobs are to be checked.
INSERT INTO rate (rate_key, rate_count, rate_micros, full_at, due_at, set_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO UPDATE SET full_at = ?4, due_at = ?5, set_at = ?6

-- name: fair_level
-- The highest priority below ?3 at which jobs with a fairness key wait, or without one. Index: the key.
SELECT max(
    coalesce((SELECT priority FROM ready
     WHERE queue = ?1 AND job_type = ?2 AND fair = 1 AND parked = 0 AND priority < ?3
     ORDER BY priority DESC LIMIT 1), -1),
    coalesce((SELECT priority FROM ready
     WHERE queue = ?1 AND job_type = ?2 AND fair = 0 AND parked = 0 AND priority < ?3
     ORDER BY priority DESC LIMIT 1), -1))

-- name: fair_keys
-- The fairness keys beyond ?5 that have jobs waiting at one priority of a version that is read, with a job's weight:
-- one seek of ready_fair for each key, however many jobs it has.
WITH RECURSIVE each (key) AS (
    SELECT * FROM (
        SELECT fairness_key FROM ready INDEXED BY ready_fair
        WHERE queue = ?1 AND job_type = ?2 AND parked = 0
          AND priority = ?3 AND fairness_key > ?5 AND payload_version <= ?6 AND suspicion <= ?7
        ORDER BY fairness_key LIMIT 1)
    UNION ALL
    SELECT (
        SELECT fairness_key FROM ready INDEXED BY ready_fair
        WHERE queue = ?1 AND job_type = ?2 AND parked = 0
          AND priority = ?3 AND fairness_key > each.key AND payload_version <= ?6 AND suspicion <= ?7
        ORDER BY fairness_key LIMIT 1)
    FROM each
    WHERE each.key IS NOT NULL
    LIMIT ?4
)
SELECT key, (
    SELECT fairness_weight FROM ready INDEXED BY ready_fair
    WHERE fairness_key = each.key AND queue = ?1 AND job_type = ?2 AND parked = 0
      AND priority = ?3 AND payload_version <= ?6 AND suspicion <= ?7
    ORDER BY scheduled_for, job_id LIMIT 1),
    coalesce((SELECT position FROM fair_key WHERE queue = ?1 AND job_type = ?2 AND fairness_key = each.key), 0)
FROM each
WHERE key IS NOT NULL

-- name: fair_head
-- The head of one fairness key at one priority, as one JSON value. Index: ready_fair.
SELECT json_group_array(json_array({candidate_columns}))
FROM (
    SELECT * FROM ready INDEXED BY ready_fair
    WHERE fairness_key = ?4 AND queue = ?1 AND job_type = ?2 AND parked = 0 AND priority = ?3
      AND payload_version <= ?6 AND suspicion <= ?7
    ORDER BY scheduled_for, job_id
    LIMIT ?5
)

-- name: plain_head
-- The head of the jobs without a fairness key at one priority, as one JSON value. Index: the key.
SELECT json_group_array(json_array({candidate_columns}))
FROM (
    SELECT * FROM ready
    WHERE queue = ?1 AND job_type = ?2 AND fair = 0 AND parked = 0 AND priority = ?3
      AND payload_version <= ?5 AND suspicion <= ?6
    ORDER BY scheduled_for, job_id
    LIMIT ?4
)

-- name: pending_in
-- How many jobs wait in a queue, up to ?2. Index: the key.
SELECT count(*) FROM (SELECT 1 FROM ready WHERE queue = ?1 LIMIT ?2)

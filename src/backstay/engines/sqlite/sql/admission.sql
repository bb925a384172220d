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
INSERT INTO rate (rate_key, rate_count, rate_micros, full_at, due_at, wanted, set_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
ON CONFLICT DO UPDATE SET full_at = ?4, due_at = ?5, wanted = ?6, set_at = ?7

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
          AND (expires_at IS NULL OR expires_at > ?8)
        ORDER BY fairness_key LIMIT 1)
    UNION ALL
    SELECT (
        SELECT fairness_key FROM ready INDEXED BY ready_fair
        WHERE queue = ?1 AND job_type = ?2 AND parked = 0
          AND priority = ?3 AND fairness_key > each.key AND payload_version <= ?6 AND suspicion <= ?7
          AND (expires_at IS NULL OR expires_at > ?8)
        ORDER BY fairness_key LIMIT 1)
    FROM each
    WHERE each.key IS NOT NULL
    LIMIT ?4
)
SELECT key, (
    SELECT fairness_weight FROM ready INDEXED BY ready_fair
    WHERE fairness_key = each.key AND queue = ?1 AND job_type = ?2 AND parked = 0
      AND priority = ?3 AND payload_version <= ?6 AND suspicion <= ?7
          AND (expires_at IS NULL OR expires_at > ?8)
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
          AND (expires_at IS NULL OR expires_at > ?8)
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
      AND (expires_at IS NULL OR expires_at > ?7)
    ORDER BY scheduled_for, job_id
    LIMIT ?4
)

-- name: pending_in
-- How many jobs wait in a queue, up to ?2. Index: the key.
SELECT count(*) FROM (SELECT 1 FROM ready WHERE queue = ?1 LIMIT ?2)

-- name: rate_bucket
-- When a bucket is full again, when its parked jobs are to be checked, what the first of them costs, and when it was
-- written. Index: the key.
SELECT full_at, due_at, wanted, set_at FROM rate WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3

-- name: rate_left_sight
-- Have the buckets of the rate keys in ?3 checked at ?1, of which a job has left sight without a start; ?2 is the time of
-- those that have no check to come. ?4: it is gone, and may be the one that a bucket waits for. Index: the key; the plus
-- keeps the index of due times out.
UPDATE rate SET due_at = ?1, wanted = CASE WHEN ?4 THEN 1 ELSE wanted END
WHERE (+due_at = ?2 OR (?4 AND wanted > 1)) AND rate_key IN (SELECT value FROM json_each(?3))

-- name: rate_of
-- The type of a job, the bucket that it was submitted with, and what it costs. Index: the unique one on job_id.
SELECT job_type, rate_key, rate_count, rate_micros, coalesce(rate_cost, 1) FROM job WHERE job_id = ?1

-- name: rate_look_again
-- Have the parked jobs of a rate key checked at ?1. Index: the key.
UPDATE rate SET due_at = ?1 WHERE rate_key = ?2 AND due_at IS NOT NULL

-- name: rate_forget
-- Delete buckets that are full and hold nothing back: a full bucket is the same as none. Index: rate_full.
DELETE FROM rate WHERE full_at < ?1 AND due_at IS NULL

-- name: rate_next
-- When the next bucket is to be checked, before ?1. Index: rate_due.
SELECT min(due_at) FROM rate INDEXED BY rate_due WHERE due_at < ?1

-- name: rate_jumped
-- Whether a bucket was written after ?1, by a clock that has been set back since. Index: rate_set.
SELECT EXISTS (SELECT 1 FROM rate WHERE set_at > ?1)

-- name: fair_position
-- How far a fairness key has come. Index: the key.
SELECT position FROM fair_key WHERE queue = ?1 AND job_type = ?2 AND fairness_key = ?3

-- name: fair_lane
-- How far a lane has come, and after which key the next claim continues. Index: the key.
SELECT position, after_key FROM fair_lane WHERE queue = ?1 AND job_type = ?2

-- name: save_fair_after
-- Note after which key the next claim of a lane continues.
INSERT INTO fair_lane (queue, job_type, position, after_key) VALUES (?1, ?2, 0, ?3)
ON CONFLICT (queue, job_type) DO UPDATE SET after_key = excluded.after_key

-- name: save_fair_lane
-- Note how far a lane has come.
INSERT INTO fair_lane (queue, job_type, position, after_key) VALUES (?1, ?2, ?3, '')
ON CONFLICT (queue, job_type) DO UPDATE SET position = excluded.position

-- name: save_fair_key
-- Note how far a fairness key has come, and when it had its turn.
INSERT OR REPLACE INTO fair_key (queue, job_type, fairness_key, position, turn_at) VALUES (?1, ?2, ?3, ?4, ?5)

-- name: forget_idle_keys
-- Delete keys that had their last turn before ?1, or that are no further than their lane. Reads all keys, of which
-- there are as many as had a turn lately. Index: the key of fair_lane.
DELETE FROM fair_key
WHERE turn_at < ?1 OR position <= (
    SELECT position FROM fair_lane AS l WHERE l.queue = fair_key.queue AND l.job_type = fair_key.job_type)

-- name: limited_queues
-- The queues with a limit. Reads all of `queue`, which has only queues that someone has changed.
SELECT name, max_pending FROM queue WHERE max_pending IS NOT NULL

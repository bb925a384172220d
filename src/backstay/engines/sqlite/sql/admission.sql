-- name: rate_due
-- The rate keys and rates whose parked jobs are to be checked by ?1, the longest due first, and those that were last
-- written by a clock which was ahead of ?2. Indexes: rate_due, rate_set.
SELECT * FROM (
    SELECT rate_key, rate_count, rate_micros FROM rate INDEXED BY rate_due WHERE due_at <= ?1 ORDER BY due_at LIMIT ?3)
UNION
SELECT * FROM (SELECT rate_key, rate_count, rate_micros FROM rate INDEXED BY rate_set WHERE set_at > ?2 LIMIT ?3)

-- name: rate_lanes
-- The queues, types and versions in which a rate key and rate have parked jobs: some seeks of job_rate_parked for each.
WITH RECURSIVE each (queue, job_type, version) AS (
    SELECT * FROM (
        SELECT queue, job_type, payload_version FROM job INDEXED BY job_rate_parked
        WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND rate_parked = 1
        ORDER BY queue, job_type, payload_version LIMIT 1)
    UNION ALL
    SELECT next.queue, next.job_type, next.payload_version FROM each JOIN job AS next ON next.seq = coalesce(
        (SELECT seq FROM job INDEXED BY job_rate_parked
         WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND rate_parked = 1
           AND queue = each.queue AND job_type = each.job_type AND payload_version > each.version
         ORDER BY payload_version LIMIT 1),
        (SELECT seq FROM job INDEXED BY job_rate_parked
         WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND rate_parked = 1
           AND queue = each.queue AND job_type > each.job_type
         ORDER BY job_type, payload_version LIMIT 1),
        (SELECT seq FROM job INDEXED BY job_rate_parked
         WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND rate_parked = 1 AND queue > each.queue
         ORDER BY queue, job_type, payload_version LIMIT 1))
)
SELECT queue, job_type, version FROM each

-- name: rate_in_sight
-- How many pending jobs of a rate key and rate, queue, type and version are in sight and come no later in claim order
-- than the one of priority ?7, due time ?8 and id ?9, up to ?10. Index: job_rate.
SELECT count(*) FROM (
    SELECT priority, scheduled_for, job_id FROM job INDEXED BY job_rate
    WHERE status = 'pending' AND parked = 0 AND rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3
      AND queue = ?4 AND job_type = ?5 AND payload_version = ?6
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?10)
WHERE (-priority, scheduled_for, job_id) <= (-?7, ?8, ?9)

-- name: rate_unpark
-- Unpark jobs of a rate key and rate, queue, type and version, in claim order: each that is among the first ?7 of the
-- parked and claimable ones. Claimable jobs that come later do not count.
-- Indexes: job_rate_parked, job_rate.
WITH next AS MATERIALIZED (
    SELECT seq, waits, row_number() OVER (ORDER BY priority DESC, scheduled_for, job_id) AS place
    FROM (
        SELECT * FROM (
            SELECT seq, rate_parked AS waits, priority, scheduled_for, job_id FROM job INDEXED BY job_rate_parked
            WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND rate_parked = 1
              AND queue = ?4 AND job_type = ?5 AND payload_version = ?6
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT ?7)
        UNION ALL
        SELECT * FROM (
            SELECT seq, 0, priority, scheduled_for, job_id FROM job INDEXED BY job_rate
            WHERE status = 'pending' AND parked = 0 AND rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3
              AND queue = ?4 AND job_type = ?5 AND payload_version = ?6
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT ?7))
)
UPDATE job SET parked = 0, rate_parked = 0
WHERE seq IN (SELECT seq FROM next WHERE waits AND place <= ?7)

-- name: rate_save
-- Keep a bucket, and when its parked jobs are to be checked; NULL keeps what is stored.
INSERT INTO rate (rate_key, rate_count, rate_micros, full_at, due_at, set_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO UPDATE SET full_at = ?4, due_at = coalesce(?5, due_at), set_at = ?6

-- name: fair_level
-- The highest priority below ?3 at which jobs with a fairness key wait, or without one. Indexes: job_fair, job_ready.
SELECT max(
    coalesce((SELECT priority FROM job INDEXED BY job_fair
     WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = ?1 AND job_type = ?2 AND parked = 0
       AND priority < ?3
     ORDER BY priority DESC LIMIT 1), -1),
    coalesce((SELECT priority FROM job INDEXED BY job_ready
     WHERE status = 'pending' AND fairness_key IS NULL AND queue = ?1 AND job_type = ?2 AND parked = 0
       AND priority < ?3
     ORDER BY priority DESC LIMIT 1), -1))

-- name: fair_keys
-- The fairness keys beyond ?5 that have jobs waiting at one priority of a version that is read, with a job's weight:
-- one seek of job_fair for each key, however many jobs it has.
WITH RECURSIVE each (key) AS (
    SELECT * FROM (
        SELECT fairness_key FROM job INDEXED BY job_fair
        WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = ?1 AND job_type = ?2 AND parked = 0
          AND priority = ?3 AND fairness_key > ?5 AND payload_version <= ?6
        ORDER BY fairness_key LIMIT 1)
    UNION ALL
    SELECT (
        SELECT fairness_key FROM job INDEXED BY job_fair
        WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = ?1 AND job_type = ?2 AND parked = 0
          AND priority = ?3 AND fairness_key > each.key AND payload_version <= ?6
        ORDER BY fairness_key LIMIT 1)
    FROM each
    WHERE each.key IS NOT NULL
    LIMIT ?4
)
SELECT key, (
    SELECT fairness_weight FROM job INDEXED BY job_fair
    WHERE status = 'pending' AND fairness_key = each.key AND queue = ?1 AND job_type = ?2 AND parked = 0
      AND priority = ?3 AND payload_version <= ?6
    ORDER BY scheduled_for, job_id LIMIT 1),
    coalesce((SELECT position FROM fair_key WHERE queue = ?1 AND job_type = ?2 AND fairness_key = each.key), 0)
FROM each
WHERE key IS NOT NULL

-- name: fair_head
-- The head of one fairness key at one priority, as one JSON value. Index: job_fair.
SELECT json_group_array(json_array(
    priority, scheduled_for, job_id, seq, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros))
FROM (
    SELECT priority, scheduled_for, job_id, seq, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros
    FROM job INDEXED BY job_fair
    WHERE status = 'pending' AND fairness_key = ?4 AND queue = ?1 AND job_type = ?2 AND parked = 0 AND priority = ?3
      AND payload_version <= ?6
    ORDER BY scheduled_for, job_id
    LIMIT ?5
)

-- name: plain_head
-- The head of the jobs without a fairness key at one priority, as one JSON value. Index: job_ready.
SELECT json_group_array(json_array(
    priority, scheduled_for, job_id, seq, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros))
FROM (
    SELECT priority, scheduled_for, job_id, seq, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros
    FROM job INDEXED BY job_ready
    WHERE status = 'pending' AND fairness_key IS NULL AND queue = ?1 AND job_type = ?2 AND parked = 0 AND priority = ?3
      AND payload_version <= ?5
    ORDER BY scheduled_for, job_id
    LIMIT ?4
)

-- name: pending_in
-- How many jobs wait in a queue, up to ?2. Indexes: job_ready, job_fair.
SELECT count(*) FROM (
    SELECT * FROM (
        SELECT 1 FROM job INDEXED BY job_ready
        WHERE status = 'pending' AND fairness_key IS NULL AND queue = ?1 LIMIT ?2)
    UNION ALL
    SELECT * FROM (
        SELECT 1 FROM job INDEXED BY job_fair
        WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = ?1 LIMIT ?2))

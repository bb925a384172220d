-- name: rate_buckets
-- The buckets of these rate keys and rates: when each is full again by the clock that wrote it, when its parked jobs are
-- to be checked, what the first of them costs, and when it was written. Index: the key.
SELECT r.* FROM unnest($1::text[], $2::integer[], $3::bigint[]) AS each (key, starts, span) CROSS JOIN LATERAL (
    SELECT rate_key, rate_count, rate_micros, full_at, due_at, wanted, set_at FROM backstay.rate
    WHERE rate_key = each.key COLLATE "C" AND rate_count = each.starts AND rate_micros = each.span
    OFFSET 0) AS r

-- name: save_rate
-- Keep a bucket, and when its parked jobs are to be checked.
INSERT INTO backstay.rate (rate_key, rate_count, rate_micros, full_at, due_at, wanted, set_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (rate_key, rate_count, rate_micros) DO UPDATE SET full_at = excluded.full_at,
    due_at = excluded.due_at, wanted = excluded.wanted, set_at = excluded.set_at

-- name: left_sight
-- Jobs of these rate keys are no longer claimable and did not start: others may be unparked. $4: they are gone, and one of
-- them may be what its bucket waits for.
UPDATE backstay.rate SET due_at = $2, wanted = CASE WHEN $4::boolean THEN 1 ELSE wanted END
WHERE rate_key = ANY ($1::text[]) AND (due_at = $3 OR ($4 AND wanted > 1))

-- name: rate_due
-- The rate keys and rates whose parked jobs are to be checked by $1, the longest due first, and those that were last
-- written by a clock which was ahead of $2. Indexes: rate_due, rate_set.
(SELECT rate_key, rate_count, rate_micros FROM backstay.rate WHERE due_at <= $1 ORDER BY due_at LIMIT $3)
UNION
(SELECT rate_key, rate_count, rate_micros FROM backstay.rate WHERE set_at > $2 LIMIT $3)

-- name: forget_full_rates
-- Delete full buckets, which are the same as none. Index: rate_full. One that a claim has locked is skipped.
DELETE FROM backstay.rate WHERE (rate_key, rate_count, rate_micros) IN (
    SELECT rate_key, rate_count, rate_micros FROM backstay.rate WHERE full_at < $1 AND due_at IS NULL LIMIT 1000
    FOR UPDATE SKIP LOCKED)
  AND full_at < $1 AND due_at IS NULL

-- name: unpark_rate
-- Let in jobs of a rate key and rate, as many as may start at $4. Index: ready_rate.
SELECT backstay.unpark_rate($1, $2, $3, $4)

-- name: rate_next_due
-- When parked jobs of any rate key are to be checked: now where a clock was set back. Indexes: rate_set, rate_due.
SELECT CASE WHEN EXISTS (SELECT 1 FROM backstay.rate WHERE set_at > $2) THEN $1::bigint
    ELSE (SELECT due_at FROM backstay.rate WHERE due_at < $3 ORDER BY due_at LIMIT 1) END

-- name: rate_of_job
-- The type of a job, its rate key, its rate, and what it costs.
SELECT job_type, rate_key, rate_count, rate_micros, coalesce(rate_cost, 1) FROM backstay.job WHERE job_id = $1::uuid

-- name: fair_level
-- The highest priority below $3 at which jobs of a lane wait. Index: ready_line.
SELECT max(highest.priority) FROM unnest('{0,1,2}'::smallint[]) AS of (line) CROSS JOIN LATERAL (
    SELECT priority FROM backstay.ready
    WHERE line = of.line AND queue = $1 AND job_type = $2 AND priority < $3
    ORDER BY priority DESC LIMIT 1) AS highest

-- name: fair_lane
-- How far a lane has come, and where the next look at its keys begins.
SELECT position, after_key FROM backstay.fair_lane WHERE queue = $1 AND job_type = $2

-- name: fair_position
-- How far a key has come in its lane.
SELECT position FROM backstay.fair_key WHERE queue = $1 AND job_type = $2 AND fairness_key = $3

-- name: fair_keys
-- The fairness keys beyond $5 that have jobs waiting at one priority of a version that is read, with a job's weight and
-- how far each key has come: one seek of ready_fair for each key, however many jobs it has.
WITH RECURSIVE each (key) AS (
    (SELECT fairness_key FROM backstay.ready
     WHERE line = 2 AND queue = $1 AND job_type = $2
       AND priority = $3 AND fairness_key > $5 AND payload_version <= $6 AND suspicion <= $7
          AND (expires_at IS NULL OR expires_at > coalesce($8::bigint, backstay.micros()))
     ORDER BY fairness_key LIMIT 1)
    UNION ALL
    SELECT (SELECT fairness_key FROM backstay.ready
        WHERE line = 2 AND queue = $1 AND job_type = $2
          AND priority = $3 AND fairness_key > each.key AND payload_version <= $6 AND suspicion <= $7
          AND (expires_at IS NULL OR expires_at > coalesce($8::bigint, backstay.micros()))
        ORDER BY fairness_key LIMIT 1)
    FROM each WHERE each.key IS NOT NULL
)
SELECT key, (
    SELECT coalesce(fairness_weight, 1) FROM backstay.ready
    WHERE line = 2 AND fairness_key = each.key AND queue = $1 AND job_type = $2
      AND priority = $3 AND payload_version <= $6 AND suspicion <= $7
          AND (expires_at IS NULL OR expires_at > coalesce($8::bigint, backstay.micros()))
    ORDER BY scheduled_for, job_id LIMIT 1) AS weight,
    coalesce((SELECT position FROM backstay.fair_key AS k
        WHERE k.queue = $1 AND k.job_type = $2 AND k.fairness_key = each.key), 0) AS position
FROM each
WHERE key IS NOT NULL
LIMIT $4

-- name: save_fair_after
-- Keep where the next look at the keys of a lane begins.
INSERT INTO backstay.fair_lane (queue, job_type, position, after_key) VALUES ($1, $2, 0, $3)
ON CONFLICT (queue, job_type) DO UPDATE SET after_key = excluded.after_key

-- name: fair_head
-- The head of one fairness key at one priority, locked. Index: ready_fair.
SELECT {candidate_columns}
FROM backstay.ready AS r
WHERE line = 2 AND fairness_key = $4 AND queue = $1 AND job_type = $2 AND priority = $3
  AND payload_version <= $6 AND suspicion <= $7 AND (expires_at IS NULL OR expires_at > coalesce($8::bigint, backstay.micros()))
  AND NOT job_id = ANY ($9::uuid[])
ORDER BY r.scheduled_for, r.job_id
LIMIT $5
FOR UPDATE SKIP LOCKED

-- name: candidates
-- The head of one lane at one priority among jobs without a fairness key, locked: $9 is 0 for those without any key, 1 for those
-- with a concurrency or rate key. Index: ready_line.
SELECT {candidate_columns}
FROM backstay.ready AS r
WHERE line = $9::smallint AND queue = $1 AND job_type = $2 AND payload_version <= $4 AND suspicion <= $5
  AND (expires_at IS NULL OR expires_at > coalesce($6::bigint, backstay.micros()))
  AND priority = $7 AND NOT job_id = ANY ($8::uuid[])
ORDER BY r.scheduled_for, r.job_id
LIMIT $3
FOR UPDATE SKIP LOCKED

-- name: save_fair_lane
-- Keep how far a lane has come.
INSERT INTO backstay.fair_lane (queue, job_type, position) VALUES ($1, $2, $3)
ON CONFLICT (queue, job_type) DO UPDATE SET position = excluded.position

-- name: save_fair_keys
-- Keep how far keys of a lane have come, and when.
INSERT INTO backstay.fair_key (queue, job_type, fairness_key, position, turn_at)
SELECT $1, $2, key, position, $5 FROM unnest($3::text[], $4::bigint[]) AS n (key, position)
ON CONFLICT (queue, job_type, fairness_key) DO UPDATE SET position = excluded.position, turn_at = excluded.turn_at

-- name: forget_idle_keys
-- Delete redundant rows: a key at the position of its lane is where a new key would start, and a key whose last turn
-- was before $1 is at most one step ahead of its lane.
DELETE FROM backstay.fair_key AS k USING backstay.fair_lane AS l
WHERE l.queue = k.queue AND l.job_type = k.job_type AND (k.position <= l.position OR k.turn_at < $1)

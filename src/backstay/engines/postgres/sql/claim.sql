-- name: claim_plain
-- Take the first plain pending jobs over the asked lanes; none where keyed jobs wait in one of them, because the two
-- kinds are claimed in one order. Index: job_ready, one descent per lane; locked rows are skipped. The
-- limit is applied to what was locked, never by joining back to a moving subquery.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[]) AS l (queue, job_type, slots, version)
), lane AS MATERIALIZED (
    SELECT * FROM asked
    WHERE queue NOT IN (SELECT name FROM backstay.queue WHERE paused_at IS NOT NULL)
      AND NOT EXISTS (
        SELECT 1 FROM asked AS l JOIN backstay.job AS j ON j.queue = l.queue AND j.job_type = l.job_type
        WHERE j.status = 'pending' AND j.fairness_key IS NULL AND NOT j.parked
          AND (j.concurrency_key IS NOT NULL OR j.rate_key IS NOT NULL))
      AND NOT EXISTS (
        SELECT 1 FROM asked AS l JOIN backstay.job AS j ON j.queue = l.queue AND j.job_type = l.job_type
        WHERE j.status = 'pending' AND j.fairness_key IS NOT NULL AND NOT j.parked)
), head AS MATERIALIZED (
    SELECT h.* FROM lane CROSS JOIN LATERAL (
        SELECT j.ctid AS place_of, j.job_type, j.priority, j.scheduled_for, j.job_id FROM backstay.job AS j
        WHERE j.status = 'pending' AND j.fairness_key IS NULL AND j.concurrency_key IS NULL AND j.rate_key IS NULL
          AND j.queue = lane.queue AND j.job_type = lane.job_type AND j.payload_version <= lane.version
        ORDER BY j.priority DESC, j.scheduled_for, j.job_id
        LIMIT lane.slots
        FOR UPDATE SKIP LOCKED
    ) AS h
), chosen AS MATERIALIZED (
    SELECT place_of FROM (
        SELECT place_of, priority, scheduled_for, job_id,
            row_number() OVER (PARTITION BY job_type ORDER BY priority DESC, scheduled_for, job_id) AS place,
            job_type
        FROM head
    ) AS ranked
    WHERE place <= (SELECT max(slots) FROM lane WHERE lane.job_type = ranked.job_type)
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT $5
), moment AS MATERIALIZED (
    -- And what is the same in every row's history: spelt once, not once for each.
    SELECT now, ',' || now || ',"claim","pending","processing",' AS event, ',' || to_json($7::text) || ']' AS by
    FROM (SELECT coalesce($10::bigint, backstay.micros()) AS now) AS clock
)
UPDATE backstay.job AS j
SET status = 'processing', attempt = j.attempt + 1, version = j.version + 1, claim_token = $6, worker_id = $7,
    worker_version = $8, lease_expires_at = moment.now + $9::bigint, started_at = moment.now, updated_at = moment.now,
    progress = 0, stage = '',
    history = backstay.trimmed(j.history, j.version) || E'\n[' || j.version + 1 || moment.event || j.attempt + 1
        || moment.by
FROM chosen, moment
WHERE j.ctid = chosen.place_of
RETURNING {claimed_columns_of_j},
    CASE WHEN starts_with(j.last_error, 'LeaseLost:') THEN (j.errors::json -> -1 ->> 'at')::bigint END

-- name: claim_lane
-- claim_plain for a single lane, whose head is in claim order already: nothing is ranked. Index: job_ready.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[]) AS l (queue, job_type, slots, version)
), lane AS MATERIALIZED (
    SELECT * FROM asked
    WHERE queue NOT IN (SELECT name FROM backstay.queue WHERE paused_at IS NOT NULL)
      AND NOT EXISTS (
        SELECT 1 FROM asked AS l JOIN backstay.job AS j ON j.queue = l.queue AND j.job_type = l.job_type
        WHERE j.status = 'pending' AND j.fairness_key IS NULL AND NOT j.parked
          AND (j.concurrency_key IS NOT NULL OR j.rate_key IS NOT NULL))
      AND NOT EXISTS (
        SELECT 1 FROM asked AS l JOIN backstay.job AS j ON j.queue = l.queue AND j.job_type = l.job_type
        WHERE j.status = 'pending' AND j.fairness_key IS NOT NULL AND NOT j.parked)
), head AS MATERIALIZED (
    SELECT h.* FROM lane CROSS JOIN LATERAL (
        SELECT j.ctid AS place_of, j.job_type, j.priority, j.scheduled_for, j.job_id FROM backstay.job AS j
        WHERE j.status = 'pending' AND j.fairness_key IS NULL AND j.concurrency_key IS NULL AND j.rate_key IS NULL
          AND j.queue = lane.queue AND j.job_type = lane.job_type AND j.payload_version <= lane.version
        ORDER BY j.priority DESC, j.scheduled_for, j.job_id
        LIMIT lane.slots
        FOR UPDATE SKIP LOCKED
    ) AS h
), chosen AS MATERIALIZED (
    SELECT place_of FROM head LIMIT $5::integer
), moment AS MATERIALIZED (
    -- And what is the same in every row's history: spelt once, not once for each.
    SELECT now, ',' || now || ',"claim","pending","processing",' AS event, ',' || to_json($7::text) || ']' AS by
    FROM (SELECT coalesce($10::bigint, backstay.micros()) AS now) AS clock
)
UPDATE backstay.job AS j
SET status = 'processing', attempt = j.attempt + 1, version = j.version + 1, claim_token = $6, worker_id = $7,
    worker_version = $8, lease_expires_at = moment.now + $9::bigint, started_at = moment.now, updated_at = moment.now,
    progress = 0, stage = '',
    history = backstay.trimmed(j.history, j.version) || E'\n[' || j.version + 1 || moment.event || j.attempt + 1
        || moment.by
FROM chosen, moment
WHERE j.ctid = chosen.place_of
RETURNING {claimed_columns_of_j},
    CASE WHEN starts_with(j.last_error, 'LeaseLost:') THEN (j.errors::json -> -1 ->> 'at')::bigint END

-- name: keyed_any
-- Whether jobs with a concurrency, rate or fairness key wait in the asked lanes. Indexes: job_keyed, job_fair.
SELECT EXISTS (
    SELECT 1 FROM unnest($1::text[], $2::text[]) AS l (queue, job_type)
    WHERE EXISTS (
        SELECT 1 FROM backstay.job AS j
        WHERE j.status = 'pending' AND j.fairness_key IS NULL
          AND (j.concurrency_key IS NOT NULL OR j.rate_key IS NOT NULL)
          AND j.queue = l.queue AND j.job_type = l.job_type AND NOT j.parked)
      OR EXISTS (
        SELECT 1 FROM backstay.job AS j
        WHERE j.status = 'pending' AND j.fairness_key IS NOT NULL
          AND j.queue = l.queue AND j.job_type = l.job_type AND NOT j.parked))

-- name: claim_seqs
-- Take jobs that this transaction has locked as pending.
UPDATE backstay.job AS j
SET status = 'processing', attempt = j.attempt + 1, version = j.version + 1, claim_token = $2, worker_id = $3,
    worker_version = $4, lease_expires_at = $6::bigint + $5::bigint, started_at = $6, updated_at = $6,
    progress = 0, stage = '',
    history = backstay.trimmed(j.history, j.version) || E'\n'
        || backstay.event(j.version + 1, $6, 'claim', 'pending', 'processing', j.attempt + 1, $3, NULL)
WHERE j.seq = ANY ($1::bigint[]) AND (j.status || '') = 'pending'
RETURNING {claimed_columns_of_j},
    CASE WHEN starts_with(j.last_error, 'LeaseLost:') THEN (j.errors::json -> -1 ->> 'at')::bigint END

-- name: claimed_before
-- What an earlier try of the same claim request took and still holds. Index: job_processing.
SELECT {claimed_columns_of_j},
    CASE WHEN starts_with(j.last_error, 'LeaseLost:') THEN (j.errors::json -> -1 ->> 'at')::bigint END
FROM backstay.job AS j
WHERE j.status = 'processing' AND j.worker_id = $1 AND j.claim_token = $2

-- name: paused
-- Queues that are paused.
SELECT name FROM backstay.queue WHERE paused_at IS NOT NULL

-- name: park
-- Park pending jobs whose key is full; $2: whether it is their rate key.
UPDATE backstay.job SET parked = true, rate_parked = $2 WHERE seq = ANY ($1::bigint[]) AND (status || '') = 'pending'

-- name: fair_any
-- Whether jobs with a fairness key wait in a lane. Index: job_fair.
SELECT EXISTS (
    SELECT 1 FROM backstay.job
    WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = $1 AND job_type = $2 AND NOT parked)

-- name: lanes
-- The asked lanes from queue $3 and type $4 on in which jobs wait, by kind, up to $5 of each, with the first job of each: a
-- seek for each lane, whatever its length, and none for those that are empty, paused or foreign. Asked are the queues $1
-- and types $2, sorted as the columns are; q and t are places in them, and `found` says how many lanes of the kind have
-- been asked for so far. The kinds walk side by side. OFFSET 0 keeps the server from computing a place anew wherever it is
-- used. Index: ready_line.
WITH RECURSIVE asked AS MATERIALIZED (
    SELECT ARRAY(
        SELECT each.name COLLATE "C" FROM unnest($1::text[]) AS each (name)
        WHERE each.name NOT IN (SELECT q.name FROM backstay.queue AS q WHERE q.paused_at IS NOT NULL)
    ) AS queues, ARRAY(
        SELECT each.name COLLATE "C" FROM unnest($2::text[]) AS each (name)
        WHERE each.name NOT IN (SELECT l.name FROM backstay.run_limit AS l WHERE l.of = 'type' AND l.paused_at IS NOT NULL)
    ) AS types
), kind AS (
    SELECT * FROM (VALUES ('plain', 0::smallint), ('keyed', 1::smallint), ('fair', 2::smallint)) AS k (kind, line)
), lane AS (
    SELECT kind.*, head.*, place.*, asks.*, asks.wanted::integer AS found
    FROM kind CROSS JOIN asked CROSS JOIN LATERAL (
        SELECT queue, job_type, priority, scheduled_for, job_id FROM backstay.ready
        WHERE line = kind.line AND (queue, job_type) >= ($3, $4)
        ORDER BY queue, job_type, priority DESC, scheduled_for, job_id
        LIMIT 1
    ) AS head CROSS JOIN LATERAL (
        SELECT width_bucket(head.queue, queues) AS q, width_bucket(head.job_type, types) AS t OFFSET 0
    ) AS place CROSS JOIN LATERAL (
        SELECT coalesce(head.queue = queues[place.q] AND head.job_type = types[place.t], false) AS wanted OFFSET 0
    ) AS asks
    UNION ALL
    SELECT at.kind, at.line, head.*, place.*, asks.*, at.found + asks.wanted::integer
    FROM lane AS at CROSS JOIN asked CROSS JOIN LATERAL (
        SELECT CASE WHEN at.queue = queues[at.q] THEN types[at.t + 1] END AS job_type OFFSET 0
    ) AS beside CROSS JOIN LATERAL (
        SELECT CASE WHEN beside.job_type IS NULL THEN queues[at.q + 1] ELSE at.queue END AS queue OFFSET 0
    ) AS below CROSS JOIN LATERAL (
        SELECT queue, job_type, priority, scheduled_for, job_id FROM backstay.ready
        WHERE line = at.line AND (queue, job_type) >= (below.queue, coalesce(beside.job_type, ''))
        ORDER BY queue, job_type, priority DESC, scheduled_for, job_id
        LIMIT 1
    ) AS head CROSS JOIN LATERAL (
        SELECT CASE head.queue WHEN at.queue THEN at.q ELSE width_bucket(head.queue, queues) END AS q,
            width_bucket(head.job_type, types) AS t OFFSET 0
    ) AS place CROSS JOIN LATERAL (
        SELECT coalesce(head.queue = queues[place.q] AND head.job_type = types[place.t], false) AS wanted OFFSET 0
    ) AS asks
    WHERE at.found < $5::integer
)
SELECT kind, queue, job_type, priority, scheduled_for, job_id::text FROM lane WHERE wanted

-- part: not_taken
-- No transaction under way has deleted or locked the row r. SKIP LOCKED finds that out as well, but takes several locks for
-- each such row, and with many workers there are more of them at the head than a claim takes. Under way are those that the
-- snapshot names, and the next ones, which began after the last one that has ended; a row has the lower half of their
-- numbers. Neither list is made before a row needs it. One that is missing in them is left to SKIP LOCKED.
(r.xmax = 0 OR (
        r.xmax <> ALL (ARRAY(SELECT xid(id) FROM pg_snapshot_xip(pg_current_snapshot()) AS id))
        AND r.xmax <> ALL (ARRAY(
            SELECT ((id + n + 2147483648) % 4294967296 - 2147483648)::integer
            FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS id OFFSET 0) AS s, generate_series(0, 63) AS n))))

-- part: claim_chosen
-- What was chosen leaves the line and runs. $6 is the key of the token.
moment AS MATERIALIZED (
    SELECT coalesce($10::bigint, backstay.micros()) AS now
), gone AS (
    DELETE FROM backstay.ready AS r USING chosen WHERE r.ctid = chosen.place_of
    RETURNING r.job_id, r.priority, r.scheduled_for, r.suspicion, r.attempt + 1 AS attempt, r.failures,
        r.version + 1 AS version, r.awaited, r.findable, r.child, r.concurrency_key
), taken AS (
    INSERT INTO backstay.running (job_id, lease_expires_at, started_at, token, attempt, failures, version, awaited,
        findable, child, worker_id, worker_version, concurrency_key)
    SELECT job_id, moment.now + $9::bigint, moment.now, $6::bigint, attempt, failures, version, awaited, findable, child,
        $7::text, $8::text, concurrency_key
    FROM gone, moment
)
SELECT {claimed_columns}
FROM gone AS p CROSS JOIN (SELECT now AS started_at, now + $9::bigint AS lease_expires_at, $7::text AS worker_id FROM moment) AS r
CROSS JOIN LATERAL (SELECT * FROM backstay.job WHERE job_id = p.job_id OFFSET 0) AS j
LEFT JOIN LATERAL (SELECT * FROM backstay.detail WHERE job_id = p.job_id OFFSET 0) AS d ON true

-- name: claim_plain
-- Take the first plain pending jobs over the asked lanes; none where keyed jobs wait in one of them, because the two
-- kinds are claimed in one order, nor where something was set at run time for one of the types. Index: ready_line, one descent per lane; locked rows are skipped. The limit is applied
-- to what was locked, never by joining back to a moving subquery. What is claimed is what was deleted: a row that changed
-- since the statement began is left for the next claim. Nothing later than $12, $13, $14 is taken, if they are given:
-- lanes that were not asked for have jobs there. $6 is the key of the token.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[]) AS l (queue, job_type, slots, version)
), lane AS MATERIALIZED (
    SELECT * FROM asked
    WHERE queue NOT IN (SELECT name FROM backstay.queue WHERE paused_at IS NOT NULL)
      AND NOT EXISTS (SELECT FROM asked AS l JOIN backstay.run_limit AS s ON s.of = 'type' AND s.name = l.job_type)
      AND NOT EXISTS (
        SELECT 1 FROM asked AS l CROSS JOIN LATERAL (
            SELECT 1 FROM backstay.ready AS r
            WHERE r.line IN (1, 2) AND r.queue = l.queue AND r.job_type = l.job_type LIMIT 1) AS found)
), head AS MATERIALIZED (
    SELECT h.* FROM lane CROSS JOIN LATERAL (
        SELECT r.ctid AS place_of, r.job_type, r.priority, r.scheduled_for, r.job_id FROM backstay.ready AS r
        WHERE r.line = 0 AND r.queue = lane.queue AND r.job_type = lane.job_type AND r.payload_version <= lane.version
          AND r.suspicion <= $11 AND (r.expires_at IS NULL OR r.expires_at > coalesce($10::bigint, backstay.micros()))
          AND {not_taken}
        ORDER BY r.priority DESC, r.scheduled_for, r.job_id
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
      AND ($12::integer IS NULL OR (-priority, scheduled_for, job_id) <= ($12, $13::bigint, $14::text::uuid))
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT $5
), {claim_chosen}

-- name: claim_lane
-- claim_plain for a single lane, whose head is in claim order already: nothing is ranked, and $1 to $4 are values instead
-- of arrays, because a claim of a few jobs costs most before its first row. Index: ready_line.
WITH chosen AS MATERIALIZED (
    SELECT r.ctid AS place_of FROM backstay.ready AS r
    WHERE r.line = 0 AND r.queue = $1 AND r.job_type = $2 AND r.payload_version <= $4::integer
      AND r.suspicion <= $11::integer
      AND (r.expires_at IS NULL OR r.expires_at > coalesce($10::bigint, backstay.micros()))
      AND NOT EXISTS (SELECT FROM backstay.queue AS q WHERE q.name = $1 AND q.paused_at IS NOT NULL)
      AND NOT EXISTS (SELECT FROM backstay.run_limit AS l WHERE l.of = 'type' AND l.name = $2)
      AND NOT EXISTS (
        SELECT FROM backstay.ready AS k WHERE k.line IN (1, 2) AND k.queue = $1 AND k.job_type = $2)
      AND {not_taken}
    ORDER BY r.priority DESC, r.scheduled_for, r.job_id
    LIMIT least($3::integer, $5::integer)
    FOR UPDATE SKIP LOCKED
), {claim_chosen}

-- name: claim_behind
-- claim_plain where the server cannot remove dead rows: nothing is looked for before the places $12, $13, $14 of the lanes
-- (see heads.py), each the negated priority, due time and id of a job. First those of the same priority, then the others.
-- Index: ready_line.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[], $12::integer[], $13::bigint[], $14::uuid[])
        AS l (queue, job_type, slots, version, less, due, job_id)
), lane AS MATERIALIZED (
    SELECT * FROM asked
    WHERE queue NOT IN (SELECT name FROM backstay.queue WHERE paused_at IS NOT NULL)
      AND NOT EXISTS (
        SELECT 1 FROM asked AS l CROSS JOIN LATERAL (
            SELECT 1 FROM backstay.ready AS r
            WHERE r.line IN (1, 2) AND r.queue = l.queue AND r.job_type = l.job_type LIMIT 1) AS found)
), same AS MATERIALIZED (
    SELECT h.* FROM lane CROSS JOIN LATERAL (
        SELECT r.ctid AS place_of, r.queue, r.job_type, r.priority, r.scheduled_for, r.job_id FROM backstay.ready AS r
        WHERE r.line = 0 AND r.queue = lane.queue AND r.job_type = lane.job_type AND r.priority = -lane.less
          AND (r.scheduled_for, r.job_id) >= (lane.due, lane.job_id)
          AND r.payload_version <= lane.version AND r.suspicion <= $11
          AND (r.expires_at IS NULL OR r.expires_at > coalesce($10::bigint, backstay.micros())) AND {not_taken}
        ORDER BY r.scheduled_for, r.job_id
        LIMIT lane.slots
        FOR UPDATE SKIP LOCKED
    ) AS h
), lower AS MATERIALIZED (
    SELECT h.* FROM (
        SELECT lane.*, (SELECT count(*) FROM same WHERE same.queue = lane.queue AND same.job_type = lane.job_type) AS found
        FROM lane OFFSET 0
    ) AS lane CROSS JOIN LATERAL (
        SELECT r.ctid AS place_of, r.queue, r.job_type, r.priority, r.scheduled_for, r.job_id FROM backstay.ready AS r
        WHERE r.line = 0 AND r.queue = lane.queue AND r.job_type = lane.job_type AND r.priority < -lane.less
          AND r.payload_version <= lane.version AND r.suspicion <= $11
          AND (r.expires_at IS NULL OR r.expires_at > coalesce($10::bigint, backstay.micros())) AND {not_taken}
        ORDER BY r.priority DESC, r.scheduled_for, r.job_id
        LIMIT lane.slots - lane.found
        FOR UPDATE SKIP LOCKED
    ) AS h
), chosen AS MATERIALIZED (
    SELECT place_of FROM (
        SELECT place_of, priority, scheduled_for, job_id,
            row_number() OVER (PARTITION BY job_type ORDER BY priority DESC, scheduled_for, job_id) AS place,
            job_type
        FROM (SELECT * FROM same UNION ALL SELECT * FROM lower) AS head
    ) AS ranked
    WHERE place <= (SELECT max(slots) FROM lane WHERE lane.job_type = ranked.job_type)
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT $5
), {claim_chosen}

-- name: dead_in_line
-- How many dead rows the line has, as the server knows.
SELECT pg_stat_get_dead_tuples('backstay.ready'::regclass)

-- name: alone_candidates
-- The first jobs that wait to run alone, over the queues in $1 and the types in $2, of the versions in $3 at most, locked.
-- Index: ready_alone, which holds nothing else, so that a scan past other queues and types is short.
SELECT {candidate_columns}
FROM backstay.ready AS r
WHERE suspicion = 2 AND parked = 0 AND queue = ANY ($1::text[])
  AND queue NOT IN (SELECT name FROM backstay.queue WHERE paused_at IS NOT NULL)
  AND job_type NOT IN (SELECT name FROM backstay.run_limit WHERE of = 'type' AND paused_at IS NOT NULL)
  AND payload_version <= ($3::integer[])[array_position($2::text[], job_type::text)]
  AND (r.expires_at IS NULL OR r.expires_at > coalesce($5::bigint, backstay.micros()))
ORDER BY r.priority DESC, r.scheduled_for, r.job_id
LIMIT $4
FOR UPDATE SKIP LOCKED

-- name: wait_alone
-- How many jobs of each type in $2 wait to run alone in the queues in $1, of the versions in $3 at most, among the first
-- $4. Index: ready_alone.
SELECT job_type, count(*) FROM (
    SELECT job_type FROM backstay.ready
    WHERE suspicion = 2 AND parked = 0 AND queue = ANY ($1::text[])
      AND queue NOT IN (SELECT name FROM backstay.queue WHERE paused_at IS NOT NULL)
      AND job_type NOT IN (SELECT name FROM backstay.run_limit WHERE of = 'type' AND paused_at IS NOT NULL)
      AND payload_version <= ($3::integer[])[array_position($2::text[], job_type::text)]
    LIMIT $4
) AS waiting
GROUP BY job_type

-- name: keyed_any
-- Whether jobs with a concurrency, rate or fairness key wait in the asked lanes, or something was set at run time for one
-- of the types. Indexes: ready_line, run_limit_pkey.
SELECT EXISTS (SELECT FROM backstay.run_limit WHERE of = 'type' AND name = ANY ($2::text[])) OR EXISTS (
    SELECT 1 FROM unnest($1::text[], $2::text[]) AS l (queue, job_type) CROSS JOIN LATERAL (
        SELECT 1 FROM backstay.ready AS r
        WHERE r.line IN (1, 2) AND r.queue = l.queue AND r.job_type = l.job_type LIMIT 1) AS found)

-- name: claim_these
-- Take jobs whose rows in the line this transaction has locked: $1.
WITH gone AS (
    DELETE FROM backstay.ready AS r WHERE r.ctid = ANY ($1::text[]::tid[])
    RETURNING r.job_id, r.priority, r.scheduled_for, r.suspicion, r.attempt + 1 AS attempt, r.failures,
        r.version + 1 AS version, r.awaited, r.findable, r.child, r.concurrency_key
), taken AS (
    INSERT INTO backstay.running (job_id, lease_expires_at, started_at, token, attempt, failures, version, awaited,
        findable, child, worker_id, worker_version, concurrency_key)
    SELECT job_id, $6::bigint + $5::bigint, $6, $2::bigint, attempt, failures, version, awaited, findable, child, $3::text,
        $4::text, concurrency_key
    FROM gone
)
SELECT {claimed_columns}
FROM gone AS p CROSS JOIN (SELECT $6::bigint AS started_at, $6 + $5 AS lease_expires_at, $3::text AS worker_id) AS r
CROSS JOIN LATERAL (SELECT * FROM backstay.job WHERE job_id = p.job_id OFFSET 0) AS j
LEFT JOIN LATERAL (SELECT * FROM backstay.detail WHERE job_id = p.job_id OFFSET 0) AS d ON true

-- name: claimed_before
-- What an earlier try of the same claim request took and still holds. It is asked of what runs, which is little.
SELECT {claimed_columns}
FROM backstay.running AS r CROSS JOIN LATERAL (SELECT * FROM backstay.job WHERE job_id = r.job_id OFFSET 0) AS j
LEFT JOIN LATERAL (SELECT * FROM backstay.detail WHERE job_id = r.job_id OFFSET 0) AS d ON true
CROSS JOIN LATERAL (SELECT r.job_id, r.attempt, r.failures, r.version, coalesce(d.priority, j.priority) AS priority,
    coalesce(d.scheduled_for, j.scheduled_for) AS scheduled_for, coalesce(d.suspicion, 0) AS suspicion) AS p
WHERE r.worker_id = $1 AND r.token = $2

-- name: paused
-- Queues that are paused, and whether anything was set at run time.
SELECT name FROM backstay.queue WHERE paused_at IS NOT NULL
UNION ALL SELECT NULL WHERE EXISTS (SELECT FROM backstay.run_limit)

-- name: park
-- Park pending jobs whose key is full, whose rows this transaction has locked; $2: 1 by their concurrency key, 2 by rate.
UPDATE backstay.ready AS r SET parked = $2::smallint, line = r.line + 2
WHERE r.ctid = ANY ($1::text[]::tid[]) AND r.parked = 0

-- name: fair_any
-- In which of the asked lanes jobs with a fairness key wait. Index: ready_line.
SELECT l.queue, l.job_type FROM unnest($1::text[], $2::text[]) AS l (queue, job_type) CROSS JOIN LATERAL (
    SELECT 1 FROM backstay.ready AS r
    WHERE r.line = 2 AND r.queue = l.queue AND r.job_type = l.job_type LIMIT 1) AS found

-- name: lane_heads
-- The heads of lanes among jobs of a line, locked: $6 is 0 for those without any key, 1 for those with a concurrency or
-- rate key. Index: ready_line.
SELECT h.* FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[])
    AS lane (queue, job_type, slots, version) CROSS JOIN LATERAL (
    SELECT {candidate_columns}
    FROM backstay.ready AS r
    WHERE r.line = $6::smallint AND r.queue = lane.queue AND r.job_type = lane.job_type
      AND r.payload_version <= lane.version AND r.suspicion <= $5
      AND (r.expires_at IS NULL OR r.expires_at > coalesce($7::bigint, backstay.micros()))
    ORDER BY r.priority DESC, r.scheduled_for, r.job_id
    LIMIT lane.slots
    FOR UPDATE SKIP LOCKED
) AS h

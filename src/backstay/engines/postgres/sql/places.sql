-- name: lock_places
-- Hold the places of jobs, whose rows in `job` are locked.
SELECT backstay.lock_places($1::uuid[])

-- name: standings
-- How jobs stand, as a decision needs to know it.
SELECT {standing_columns} FROM backstay.standing WHERE job_id = ANY ($1::uuid[])

-- name: revise
-- Jobs that wait have other payloads, of the versions in $3.
UPDATE backstay.job AS j SET payload = n.payload, payload_version = n.version
FROM unnest($1::uuid[], $2::text[], $3::integer[]) AS n (job_id, payload, version) WHERE j.job_id = n.job_id

-- name: leave
-- Take jobs out of the places in which they are locked, and write what their detail is from now on. $1 to $4: ids of those
-- in later, waiting, running and ended; $5 to $10: the places of those in the line; $11: details, as JSON. Of their
-- reports, NULL keeps what is stored.
WITH later AS (
    DELETE FROM backstay.later WHERE job_id = ANY ($1::uuid[])
), waiting AS (
    DELETE FROM backstay.waiting WHERE job_id = ANY ($2::uuid[])
), running AS (
    DELETE FROM backstay.running WHERE job_id = ANY ($3::uuid[])
), ended AS (
    DELETE FROM backstay.ended WHERE job_id = ANY ($4::uuid[])
), ready AS (
    DELETE FROM backstay.ready WHERE ctid = ANY (ARRAY(
        SELECT r.place_of
        FROM unnest($5::smallint[], $6::text[], $7::text[], $8::integer[], $9::bigint[], $10::uuid[])
            AS n (line, queue, job_type, priority, scheduled_for, job_id)
        CROSS JOIN LATERAL (
            SELECT ctid AS place_of FROM backstay.ready
            WHERE line = n.line AND queue = n.queue AND job_type = n.job_type AND priority = n.priority
              AND scheduled_for = n.scheduled_for AND job_id = n.job_id OFFSET 0) AS r))
)
INSERT INTO backstay.detail AS d (job_id, {detail_columns})
SELECT job_id, {detail_columns} FROM json_populate_recordset(NULL::backstay.detail, $11::json) WHERE $11 IS NOT NULL
ON CONFLICT (job_id) DO UPDATE SET {detail_changes}

-- name: stay
-- Running jobs have changed and continue to run, $1 and $2; waiting ones continue to wait, $3 as JSON. Rows are updated,
-- so that a release which waits for their locks finds them again. The completion of a running job that has another
-- priority, $4, leaves the common path, which takes it for one of the kind that it was when it was claimed.
WITH running AS (
    UPDATE backstay.running AS r SET version = n.version, awaited = r.awaited OR n.is_other
    FROM unnest($1::uuid[], $2::integer[], $4::boolean[]) AS n (job_id, version, is_other)
    WHERE r.job_id = n.job_id
)
UPDATE backstay.waiting AS w SET scheduled_for = n.scheduled_for, priority = n.priority, attempt = n.attempt,
    failures = n.failures, version = n.version, unmet = n.unmet, awaited = n.awaited, awaits = n.awaits,
    wakes_at = n.wakes_at, expires_at = n.expires_at
FROM json_populate_recordset(NULL::backstay.waiting, $3::json) AS n
WHERE $3 IS NOT NULL AND w.job_id = n.job_id

-- name: enter
-- Put jobs into their new places, as JSON: $1 later, $2 waiting, $3 running, $4 ended, $5 ready; and keep events, $6. What
-- the line has besides is from facts and detail.
WITH later AS (
    INSERT INTO backstay.later SELECT * FROM json_populate_recordset(NULL::backstay.later, $1::json) WHERE $1 IS NOT NULL
), waiting AS (
    INSERT INTO backstay.waiting SELECT * FROM json_populate_recordset(NULL::backstay.waiting, $2::json) WHERE $2 IS NOT NULL
), running AS (
    INSERT INTO backstay.running SELECT * FROM json_populate_recordset(NULL::backstay.running, $3::json) WHERE $3 IS NOT NULL
), ended AS (
    INSERT INTO backstay.ended SELECT * FROM json_populate_recordset(NULL::backstay.ended, $4::json) WHERE $4 IS NOT NULL
), ready AS (
    INSERT INTO backstay.ready (job_id, queue, job_type, priority, scheduled_for, payload_version, line, suspicion,
        findable, child, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros, rate_cost, fairness_key,
        fairness_weight, attempt, failures, version, awaited, parked, expires_at)
    SELECT j.job_id, j.queue, j.job_type, j.priority, j.scheduled_for, j.payload_version,
        j.line + CASE WHEN n.parked > 0 THEN 2 ELSE 0 END, j.suspicion,
        j.findable, j.child, j.concurrency_key, j.concurrency_limit, j.rate_key, j.rate_count, j.rate_micros, j.rate_cost,
        j.fairness_key, j.fairness_weight, n.attempt, n.failures, n.version, n.awaited, n.parked, n.expires_at
    FROM json_to_recordset($5::json) AS n (
        job_id uuid, attempt integer, failures integer, version integer, awaited boolean, parked smallint,
        expires_at bigint)
    CROSS JOIN LATERAL (SELECT * FROM backstay.claimable WHERE job_id = n.job_id OFFSET 0) AS j
    WHERE $5 IS NOT NULL
)
INSERT INTO backstay.event SELECT * FROM json_populate_recordset(NULL::backstay.event, $6::json) WHERE $6 IS NOT NULL

-- name: trim
-- Drop events from the middle of long histories.
DELETE FROM backstay.event AS v USING unnest($1::uuid[], $2::integer[], $3::integer[]) AS n (job_id, first, last)
WHERE v.job_id = n.job_id AND v.version BETWEEN n.first AND n.last

-- name: mark_awaited
-- Jobs have others that wait on them from now on.
SELECT backstay.mark_awaited($1::uuid[])

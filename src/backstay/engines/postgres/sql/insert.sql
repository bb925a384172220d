-- name: present
-- How many of these jobs are there: an insert whose answer was lost is recognised by its ids. Index: job_pkey.
SELECT count(*) FROM backstay.job WHERE job_id = ANY ($1::uuid[])

-- part: counted_one
-- A single job has room, is announced and counted.
moment AS MATERIALIZED (
    SELECT
        CASE WHEN EXISTS (SELECT 1 FROM backstay.queue WHERE max_pending IS NOT NULL)
            THEN backstay.refuse_over_limit({$queue}, 1) END AS allowed,
        CASE WHEN $4::text IS NOT NULL THEN pg_notify(backstay.channel(), $4) END AS told,
        coalesce($2::bigint, backstay.micros()) AS now
), counted AS (
    INSERT INTO backstay.arrived AS a (minute, job_type, queue, priority, shard, count)
    SELECT now - now % 60000000, {$job_type}, {$queue}, {$priority}, pg_backend_pid() % 64, 1 FROM moment
    ON CONFLICT (minute, job_type, queue, priority, shard) DO UPDATE SET count = a.count + excluded.count
)

-- name: insert_one
-- insert_plain for a single job that is due, as small as can be: how a statement is set up counts here, not how it
-- treats many. Whether there is room is asked before the time: no row may be there before it is counted, and asking may
-- wait. $1 is the caller's clock, by which the job is due at $3; $2 is the store's; $4 is a wake-up to send with the
-- commit, or NULL.
WITH {counted_one}, job AS (
    INSERT INTO backstay.job (scheduled_for, {inserted_columns}, created_at)
    SELECT $3::bigint + now - $1::bigint, {inserted_values}, now FROM moment
)
INSERT INTO backstay.ready (job_id, queue, job_type, priority, scheduled_for, payload_version, attempt, failures, version,
    line, suspicion, awaited, findable, child, fairness_key, fairness_weight)
SELECT {$job_id}, {$queue}, {$job_type}, {$priority}, $3 + now - $1, {$payload_version}, 0, 0, 1,
    CASE WHEN {$fairness_key} IS NULL THEN 0 ELSE 2 END, 0, false, {$content_hash} IS NOT NULL, false, {$fairness_key},
    CASE WHEN {$fairness_key} IS NOT NULL THEN {$fairness_weight}::integer END
FROM moment

-- name: insert_usual
-- insert_one for a job that has only the fields that every job has: half as many values to send and to read.
WITH {counted_one}, job AS (
    INSERT INTO backstay.job (scheduled_for, {usual_columns}, created_at)
    SELECT $3::bigint + now - $1::bigint, {usual_values}, now FROM moment
)
INSERT INTO backstay.ready (job_id, queue, job_type, priority, scheduled_for, payload_version, attempt, failures, version,
    line, suspicion, awaited, findable, child)
SELECT {$job_id}, {$queue}, {$job_type}, {$priority}, $3 + now - $1, 1, 0, 0, 1, 0, 0, false, false, false FROM moment

-- name: insert_plain
-- Jobs that are facts and a place and nothing more, in one statement. $1 is the caller's clock, by which a job is due now
-- or later ($3); $2 is the store's. A job that comes later by the caller's clock is scheduled, if only for a moment.
WITH n AS MATERIALIZED (
    SELECT *, scheduled_for > $1::bigint AS later
    FROM unnest($3::bigint[], {inserted_arrays}) AS n (scheduled_for, {inserted_columns})
), allowed AS MATERIALIZED (
    SELECT backstay.refuse_over_limit(queue, coming)
    FROM (SELECT queue, count(*) AS coming FROM n WHERE NOT later GROUP BY queue ORDER BY queue) AS due
    WHERE EXISTS (SELECT 1 FROM backstay.queue WHERE max_pending IS NOT NULL)
), moment AS MATERIALIZED (
    -- The time, once it is known that there is room: no row may be there before it is counted.
    SELECT coalesce($2::bigint, backstay.micros()) + 0 * (SELECT count(*) FROM allowed) AS now
), due AS MATERIALIZED (
    SELECT n.*, now, CASE WHEN later THEN greatest(n.scheduled_for, now + 1) ELSE n.scheduled_for + now - $1 END AS due
    FROM n, moment
), job AS (
    INSERT INTO backstay.job (scheduled_for, {inserted_columns}, created_at) SELECT due, {inserted_columns}, now FROM due
), ready AS (
    INSERT INTO backstay.ready (job_id, queue, job_type, priority, scheduled_for, payload_version, attempt, failures,
        version, line, suspicion, awaited, findable, child, fairness_key, fairness_weight)
    SELECT job_id, queue, job_type, priority, due, payload_version, 0, 0, 1,
        CASE WHEN fairness_key IS NULL THEN 0 ELSE 2 END, 0, false, content_hash IS NOT NULL, false, fairness_key,
        CASE WHEN fairness_key IS NOT NULL THEN fairness_weight END
    FROM due WHERE NOT later
), later AS (
    INSERT INTO backstay.later (job_id, queue, job_type, priority, scheduled_for, attempt, failures, version, awaited,
        status)
    SELECT job_id, queue, job_type, priority, due, 0, 0, 1, false, 'scheduled' FROM due WHERE later
), tallied AS (
    INSERT INTO backstay.tally AS t (shard, job_type, queue, priority, status, count)
    SELECT pg_backend_pid() % 64, job_type, queue, priority, 'scheduled', count(*) FROM due WHERE later
    GROUP BY job_type, queue, priority
    ORDER BY job_type, queue, priority
    ON CONFLICT (shard, job_type, queue, priority, status) DO UPDATE SET count = t.count + excluded.count
)
INSERT INTO backstay.arrived AS a (minute, job_type, queue, priority, shard, count)
SELECT now - now % 60000000, job_type, queue, priority, pg_backend_pid() % 64, count(*)
FROM due
GROUP BY now, job_type, queue, priority
ORDER BY job_type, queue, priority
ON CONFLICT (minute, job_type, queue, priority, shard) DO UPDATE SET count = a.count + excluded.count

-- name: refuse_over_limit
-- QueueFull where a limited queue has no room for so many jobs more.
SELECT backstay.refuse_over_limit(queue, coming) FROM unnest($1::text[], $2::bigint[]) AS n (queue, coming)

-- name: hold_for
-- Hold everything that several special jobs will wait for, in one order for everyone.
SELECT backstay.hold_for(ARRAY(SELECT c FROM jsonb_populate_recordset(NULL::backstay.coming, $1::jsonb) AS c), $2::bigint)

-- name: insert_jobs
-- Jobs that are more than a row. $4: on which terms.
SELECT backstay.insert_jobs($1::jsonb, $2::bigint, $3::bigint, false, $4::jsonb, false)::text

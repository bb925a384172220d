-- name: hold_for
-- Hold everything that several special jobs will wait for, in one order for everyone.
SELECT backstay.hold_for($1::jsonb)

-- name: present
-- How many of these jobs are there: an insert whose answer was lost is recognised by its ids. Index: the unique one.
SELECT count(*) FROM backstay.job WHERE job_id = ANY ($1::uuid[])

-- name: insert_one
-- insert_plain for a single job, as small as can be: how a statement is set up counts here, not how it treats many.
-- Whether there is room is asked before the time: no row may be there before it is counted, and asking may wait.
WITH counted AS (
    INSERT INTO backstay.counter AS c
        (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros, waited_micros)
    SELECT now - now % 60000000, {$job_type}, {$queue}, {$priority}, 'submitted', pg_backend_pid() % 64, 0, 1, 0, 0
    FROM (SELECT coalesce($2::bigint, backstay.micros()) AS now) AS moment
    ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count
)
INSERT INTO backstay.job (scheduled_for, {inserted_columns}, status, created_at, updated_at, history)
SELECT CASE WHEN later THEN $3 ELSE $3 + now - $1 END, {inserted_values}, status, now, now,
    '[1,' || now || ',"submit",null,"' || status || '",0,' || coalesce(to_json({$created_by}::text)::text, 'null') || ']'
FROM (
    SELECT
        CASE WHEN $3::bigint <= $1::bigint AND EXISTS (SELECT 1 FROM backstay.queue WHERE max_pending IS NOT NULL)
            THEN backstay.refuse_over_limit({$queue}, 1) END AS allowed,
        coalesce($2::bigint, backstay.micros()) AS now,
        $3 > $1 AS later,
        CASE WHEN $3 > $1 THEN 'scheduled' ELSE 'pending' END AS status
) AS moment

-- name: insert_plain
-- Jobs that are rows and nothing more, in one statement. $1 is the caller's clock, by which a job is due now or later
-- ($3); $2 is the store's.
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
), job AS (
    INSERT INTO backstay.job (scheduled_for, {inserted_columns}, status, created_at, updated_at, history)
    SELECT CASE WHEN later THEN scheduled_for ELSE scheduled_for + now - $1::bigint END, {inserted_columns},
        CASE WHEN later THEN 'scheduled' ELSE 'pending' END, now, now,
        backstay.event(1, now, 'submit', NULL, CASE WHEN later THEN 'scheduled' ELSE 'pending' END, 0, created_by, NULL)
    FROM n, moment
)
INSERT INTO backstay.counter AS c (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros, waited_micros)
SELECT now - now % 60000000, job_type, queue, priority, 'submitted', pg_backend_pid() % 64, 0, count(*), 0, 0
FROM n, moment
GROUP BY now, job_type, queue, priority
ORDER BY job_type, queue, priority
ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count

-- name: refuse_over_limit
-- QueueFull where a limited queue has no room for so many jobs more.
SELECT backstay.refuse_over_limit(queue, coming) FROM unnest($1::text[], $2::bigint[]) AS n (queue, coming)

-- name: insert_specials
-- Several jobs that are more than a row, in turn: the function is volatile, so each sees what those before it did.
-- $4: on which terms.
SELECT backstay.insert_special(each.job || $4::jsonb, $2::bigint, $3::bigint)
FROM (SELECT job FROM jsonb_array_elements($1::jsonb) WITH ORDINALITY AS one (job, place) ORDER BY place) AS each

-- name: count
-- Add to the counters, one row per minute, kind, outcome and bucket; to the submits that are not among these yet, by minute
-- and kind; and to the tally, by kind and state. Each in one order for everyone.
WITH counted AS (
    INSERT INTO backstay.counter AS c (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros,
        waited_micros)
    SELECT minute, job_type, queue, priority, outcome, pg_backend_pid() % 64, bucket, jobs, ran, waited
    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::integer[], $7::bigint[], $8::bigint[],
            $9::bigint[])
        AS n (minute, job_type, queue, priority, outcome, bucket, jobs, ran, waited)
    ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count,
        ran_micros = c.ran_micros + excluded.ran_micros, waited_micros = c.waited_micros + excluded.waited_micros
), came AS (
    INSERT INTO backstay.arrived AS a (minute, job_type, queue, priority, shard, count)
    SELECT minute, job_type, queue, priority, pg_backend_pid() % 64, jobs
    FROM unnest($10::bigint[], $11::text[], $12::text[], $13::integer[], $14::bigint[])
        AS n (minute, job_type, queue, priority, jobs)
    ON CONFLICT (minute, job_type, queue, priority, shard) DO UPDATE SET count = a.count + excluded.count
)
INSERT INTO backstay.tally AS t (shard, job_type, queue, priority, status, count)
SELECT pg_backend_pid() % 64, job_type, queue, priority, status, jobs
FROM unnest($15::text[], $16::text[], $17::integer[], $18::text[], $19::bigint[])
    AS n (job_type, queue, priority, status, jobs)
ON CONFLICT (shard, job_type, queue, priority, status) DO UPDATE SET count = t.count + excluded.count

-- name: add_up
-- Add submits of minutes before $1 to the counters and the tally, and the shards of the tally up, where there are such
-- submits: once a minute, by one process at a time ($2). What someone is writing is left to the next time; what comes
-- later than the sums of its hour is added to these as well. Indexes: the primary keys.
WITH mine AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended($2::text, 0)) AS is_held
    FROM (SELECT WHERE EXISTS (SELECT FROM backstay.arrived WHERE minute < $1::bigint)) AS anything
), arrivals AS (
    DELETE FROM backstay.arrived WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM backstay.arrived WHERE minute < $1 AND (SELECT is_held FROM mine) FOR UPDATE SKIP LOCKED))
    RETURNING minute, job_type, queue, priority, count
), shards AS (
    DELETE FROM backstay.tally WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM backstay.tally WHERE shard >= 0 AND (SELECT is_held FROM mine) FOR UPDATE SKIP LOCKED))
    RETURNING job_type, queue, priority, status, count
), counted AS (
    INSERT INTO backstay.counter AS c (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros,
        waited_micros)
    SELECT minute, job_type, queue, priority, 'submitted', 0, 0, sum(count), 0, 0 FROM arrivals
    GROUP BY minute, job_type, queue, priority
    ORDER BY minute, job_type, queue, priority
    ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count
), late AS (
    INSERT INTO backstay.counter_sum AS s (job_type, queue, outcome, bucket, count, ran_micros, waited_micros)
    SELECT job_type, queue, 'submitted', 0, sum(count), 0, 0 FROM arrivals
    WHERE minute < (SELECT until FROM backstay.summed)
    GROUP BY job_type, queue
    ORDER BY job_type, queue
    ON CONFLICT (job_type, queue, outcome, bucket) DO UPDATE SET count = s.count + excluded.count
)
INSERT INTO backstay.tally AS t (shard, job_type, queue, priority, status, count)
SELECT -1, job_type, queue, priority, status, sum(count) FROM (
    SELECT job_type, queue, priority, 'stored' AS status, count FROM arrivals
    UNION ALL
    SELECT job_type, queue, priority, status, count FROM shards) AS n
GROUP BY job_type, queue, priority, status
ORDER BY job_type, queue, priority, status
ON CONFLICT (shard, job_type, queue, priority, status) DO UPDATE SET count = t.count + excluded.count

-- name: lock_names
-- Hold names until the end of the transaction, in one order for everyone.
SELECT pg_advisory_xact_lock(lock) FROM (
    SELECT DISTINCT hashtextextended(name, 0) AS lock FROM unnest($1::text[]) AS n (name) ORDER BY lock) AS locks

-- name: now
-- The server's clock.
SELECT backstay.micros()

-- name: notify
-- Wake up the listeners of the channel $1. This transaction alone does not wait for the disk, and holds the lock of
-- notifications for microseconds: what it announces has been committed before.
SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)

-- name: safety
-- What decides whether an acknowledged job is on disk. Not from pg_settings: that view computes all settings of the server.
SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('server_version_num')::integer AS server_version

-- name: count
-- Add to the counters; one row per minute, kind, outcome and bucket.
INSERT INTO backstay.counter AS c (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros,
    waited_micros)
SELECT minute, job_type, queue, priority, outcome, pg_backend_pid() % 64, bucket, jobs, ran, waited
FROM unnest($1::bigint[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::integer[], $7::bigint[], $8::bigint[],
        $9::bigint[])
    AS n (minute, job_type, queue, priority, outcome, bucket, jobs, ran, waited)
ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count,
    ran_micros = c.ran_micros + excluded.ran_micros, waited_micros = c.waited_micros + excluded.waited_micros

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

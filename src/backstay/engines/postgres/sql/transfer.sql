-- name: move_forget
-- Delete the transfer state. A table of one row.
DELETE FROM backstay.move

-- name: move_lock
-- Wait for everyone who writes jobs, and keep others from beginning to. No index: it locks the tables.
LOCK TABLE backstay.job, backstay.ready, backstay.later, backstay.waiting, backstay.running, backstay.ended
IN SHARE ROW EXCLUSIVE MODE

-- name: under_way
-- Operations that would be left half done if the queue were sealed now. A table that holds what runs.
SELECT (SELECT count(*) FROM backstay.running) + (SELECT count(*) FROM backstay.release_due)
    + (SELECT count(*) FROM backstay.unpack_due) + (SELECT count(*) FROM backstay.join_due)
    + (SELECT count(*) FROM backstay.event_due)

-- name: move_save
-- Remember how far a move is. Index: the primary key.
INSERT INTO backstay.move (state) VALUES ($1) ON CONFLICT (only_one) DO UPDATE SET state = excluded.state

-- name: move_state
-- How far a move is, if there is one. Index: the primary key, of a table of one row.
SELECT state FROM backstay.move

-- name: result_names
-- The names of all result tables. Index: the primary key.
SELECT name FROM backstay.result_table ORDER BY name

-- name: move_triggers
-- The triggers that keep a queue from changing. Of the catalogue.
SELECT t.tgname::text, c.relname::text FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND starts_with(t.tgname::text, $2) AND NOT t.tgisinternal

-- name: export_jobs
-- A page of jobs by arrival after $1, each with its place among the others. Indexes: job_pkey, job_arrival.
SELECT {record_columns}, h.place::text FROM (
    (SELECT job_id, job_id AS place FROM backstay.job
     WHERE job_id > $1::uuid AND arrival IS NULL ORDER BY job_id LIMIT $2)
    UNION ALL
    (SELECT job_id, arrival FROM backstay.job WHERE arrival > $1::uuid ORDER BY arrival LIMIT $2)
    ORDER BY place LIMIT $2
) AS h CROSS JOIN LATERAL (SELECT * FROM backstay.standing AS s WHERE s.job_id = h.job_id OFFSET 0) AS standing
ORDER BY h.place

-- name: export_edges
-- What these jobs depend on. Index: edge_child.
SELECT child_id::text, parent_id::text, met, joined FROM backstay.edge WHERE child_id = ANY ($1::uuid[])

-- name: export_steps
-- A page of recorded steps after ($1, $2, $3). Index: the primary key.
SELECT job_id::text, kind, name, answer, attempt, recorded_at FROM backstay.step
WHERE (job_id, kind, name) > ($1::uuid, $2::text, $3::text) ORDER BY job_id, kind, name LIMIT $4

-- name: export_mailboxes
-- A page of correlation keys after $1. Index: the primary key.
SELECT event_key, content, expires_at FROM backstay.mailbox WHERE event_key > $1::text ORDER BY event_key LIMIT $2

-- name: export_output
-- A page of output after ($1, $2, $3, $4). Index: the primary key.
SELECT job_id::text, attempt, take, first, last, size, written_at, text FROM backstay.output
WHERE (job_id, attempt, take, last) > ($1::uuid, $2::integer, $3::integer, $4::integer)
ORDER BY job_id, attempt, take, last LIMIT $5

-- name: export_archive
-- A page of the archive after $1. Index: the primary key.
SELECT job_id::text, status, archived_at, has_files, details FROM backstay.archive
WHERE job_id > $1::uuid ORDER BY job_id LIMIT $2

-- name: export_guards
-- A page of guards after $1. Index: the primary key.
SELECT dedup_key, job_id::text, until FROM backstay.dedup WHERE dedup_key > $1::text ORDER BY dedup_key LIMIT $2

-- name: export_counters
-- A page of counters after ($1, $2, $3, $4, $5), all shards and buckets together. Index: the primary key.
SELECT minute, job_type, queue, priority, outcome, sum(jobs)::bigint, sum(ran)::bigint, sum(waited)::bigint,
    json_agg(json_build_array(bucket, jobs)) FILTER (WHERE bucket <> 0)::text
FROM (
    SELECT minute, job_type, queue, priority, outcome, bucket, sum(count) AS jobs, sum(ran_micros) AS ran,
        sum(waited_micros) AS waited
    FROM backstay.counter
    WHERE (minute, job_type, queue, priority, outcome) > ($1::bigint, $2::text, $3::text, $4::integer, $5::text)
    GROUP BY minute, job_type, queue, priority, outcome, bucket
) AS each
GROUP BY minute, job_type, queue, priority, outcome
ORDER BY minute, job_type, queue, priority, outcome LIMIT $6

-- name: export_totals
-- A page of sums after ($1, $2, $3), all buckets together, and how far they go. Index: the primary key.
SELECT job_type, queue, outcome, sum(count)::bigint, sum(ran_micros)::bigint, sum(waited_micros)::bigint,
    json_agg(json_build_array(bucket, count)) FILTER (WHERE bucket <> 0)::text,
    (SELECT until FROM backstay.summed)
FROM backstay.counter_sum
WHERE (job_type, queue, outcome) > ($1::text, $2::text, $3::text)
GROUP BY job_type, queue, outcome
ORDER BY job_type, queue, outcome LIMIT $4

-- name: export_audit
-- A page of the audit trail after the entry $1, oldest first. Index: the primary key.
SELECT entry_id, at, by, via, action, target, before, after, outcome, remote
FROM backstay.audit
WHERE entry_id > $1::text
ORDER BY entry_id LIMIT $2

-- name: restoring
-- From here to the end of the transaction, what is moved into this store may be written.
SELECT set_config('backstay_move.restoring', 'on', true)

-- name: arrived
-- How many jobs have their place between each of the ids in $1 and the one in $2. Index: job_arrival.
SELECT (SELECT count(*) FROM backstay.job WHERE arrival >= n.lowest AND arrival < n.highest)
FROM unnest($1::uuid[], $2::uuid[]) WITH ORDINALITY AS n (lowest, highest, place) ORDER BY n.place

-- name: restored_before
-- Which of these jobs are there. Index: job_pkey.
SELECT job_id::text FROM backstay.job WHERE job_id = ANY ($1::uuid[])

-- name: known_anywhere
-- Which of these jobs are there, or in the archive. Indexes: job_pkey, archive_pkey.
SELECT job_id::text FROM backstay.job WHERE job_id = ANY ($1::uuid[])
UNION ALL
SELECT job_id::text FROM backstay.archive WHERE job_id = ANY ($1::uuid[])

-- name: keys_taken
-- The jobs that dedup keys belong to, locked against a submit with the same key, and until when. Index: the primary key.
SELECT dedup_key, job_id::text, until FROM backstay.dedup WHERE dedup_key = ANY ($1::text[]) ORDER BY dedup_key
FOR UPDATE

-- name: give_key
-- Let a dedup key belong to a job. Index: the primary key.
INSERT INTO backstay.dedup (dedup_key, job_id, until) VALUES ($1, $2::uuid, $3)
ON CONFLICT (dedup_key) DO UPDATE SET job_id = excluded.job_id, until = excluded.until

-- name: restore_edges
-- Edges of restored jobs. Index: the primary key.
INSERT INTO backstay.edge (child_id, parent_id, met, joined) VALUES ($1::uuid, $2::uuid, $3, $4) ON CONFLICT DO NOTHING

-- name: restore_archive
-- Rows of an archive as they were. Index: the primary key.
INSERT INTO backstay.archive (job_id, archived_at, status, has_files, details) VALUES ($1::uuid, $2, $3, $4, $5)
ON CONFLICT DO NOTHING

-- name: restore_counters
-- Counters as they were, in one shard: they are not added to any more. Index: the primary key.
INSERT INTO backstay.counter (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros, waited_micros)
VALUES ($1, $2, $3, $4, $5, 0, $6, $7, $8, $9) ON CONFLICT DO NOTHING

-- name: restore_totals
-- Sums as they were. Index: the primary key.
INSERT INTO backstay.counter_sum (job_type, queue, outcome, bucket, count, ran_micros, waited_micros)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING

-- name: restore_guards
-- Guards as they were. Index: the primary key.
INSERT INTO backstay.dedup (dedup_key, job_id, until) VALUES ($1, $2::uuid, $3) ON CONFLICT DO NOTHING

-- name: restore_queues
-- What was said about queues. Index: the primary key.
INSERT INTO backstay.queue ({queue_columns}) VALUES ({queue_places})
ON CONFLICT DO NOTHING

-- name: restore_limits
-- What was set at run time. Index: the primary key.
INSERT INTO backstay.run_limit ({limit_columns}) VALUES ({limit_places})
ON CONFLICT DO NOTHING

-- name: restore_schedules
-- Schedules as they were. Index: the primary key.
INSERT INTO backstay.schedule (name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at,
    version, paused_at, paused_by, last_at, last_job_id, overlap, jitter_micros, starts_at, ends_at, declared_by, skipped,
    skipped_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
ON CONFLICT DO NOTHING

-- name: restore_steps
-- Steps as they were recorded. Index: the primary key.
INSERT INTO backstay.step (job_id, kind, name, answer, attempt, recorded_at) VALUES ($1::uuid, $2, $3, $4, $5, $6)
ON CONFLICT DO NOTHING

-- name: restore_output
-- Output as it was written. Index: the primary key.
INSERT INTO backstay.output (job_id, attempt, take, first, last, size, written_at, text)
VALUES ($1::uuid, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT DO NOTHING

-- name: restore_mailboxes
-- Correlation keys as they were. Index: the primary key.
INSERT INTO backstay.mailbox (event_key, content, expires_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING

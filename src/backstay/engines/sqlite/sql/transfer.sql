-- name: export_jobs
-- A page of jobs after the position ?1. Indexes: the keys.
SELECT {record_columns}
FROM job AS j NOT INDEXED
{joined}
WHERE j.seq > ?1 ORDER BY j.seq LIMIT ?2

-- name: restore_children
-- How many children a restored job has.
INSERT INTO detail (seq, children, open_children, failed_children, cancelled_children)
VALUES (:seq, :children, :open_children, :failed_children, :cancelled_children)
ON CONFLICT (seq) DO UPDATE SET children = excluded.children, open_children = excluded.open_children,
    failed_children = excluded.failed_children, cancelled_children = excluded.cancelled_children

-- name: export_steps
-- A page of recorded steps after (?1, ?2, ?3). Index: the primary key.
SELECT job_id, kind, name, answer, attempt, recorded_at FROM step
WHERE (job_id, kind, name) > (?1, ?2, ?3) ORDER BY job_id, kind, name LIMIT ?4

-- name: export_mailboxes
-- A page of correlation keys after ?1. Index: the key.
SELECT event_key, content, expires_at FROM mailbox WHERE event_key > ?1 ORDER BY event_key LIMIT ?2

-- name: export_output
-- A page of output after (?1, ?2, ?3, ?4). Index: the primary key.
SELECT job_id, attempt, take, first, last, size, written_at, text FROM output
WHERE (job_id, attempt, take, last) > (?1, ?2, ?3, ?4) ORDER BY job_id, attempt, take, last LIMIT ?5

-- name: export_archive
-- A page of the archive after ?1. Index: the primary key.
SELECT job_id, status, archived_at, has_files, details FROM archive WHERE job_id > ?1 ORDER BY job_id LIMIT ?2

-- name: export_guards
-- A page of guards after ?1. Index: the primary key.
SELECT dedup_key, job_id, until FROM dedup WHERE dedup_key > ?1 ORDER BY dedup_key LIMIT ?2

-- name: export_counters
-- A page of counters after (?1, ?2, ?3, ?4, ?5), all buckets together. Index: the primary key.
SELECT minute, job_type, queue, priority, outcome, sum(count), sum(ran_micros), sum(waited_micros),
    json_group_array(json_array(bucket, count)) FILTER (WHERE bucket <> 0)
FROM counter
WHERE (minute, job_type, queue, priority, outcome) > (?1, ?2, ?3, ?4, ?5)
GROUP BY minute, job_type, queue, priority, outcome
ORDER BY minute, job_type, queue, priority, outcome LIMIT ?6

-- name: export_totals
-- A page of sums after (?1, ?2, ?3), all buckets together. Index: the primary key.
SELECT job_type, queue, outcome, sum(count), sum(ran_micros), sum(waited_micros),
    json_group_array(json_array(bucket, count)) FILTER (WHERE bucket <> 0)
FROM counter_sum
WHERE (job_type, queue, outcome) > (?1, ?2, ?3)
GROUP BY job_type, queue, outcome
ORDER BY job_type, queue, outcome LIMIT ?4

-- name: export_audit
-- A page of the audit trail after the entry ?1, oldest first. Index: the primary key.
SELECT entry_id, at, by, via, action, target, before, after, outcome, remote
FROM audit
WHERE entry_id > ?1
ORDER BY entry_id LIMIT ?2

-- name: drop_meta
-- Forget what is kept under a name. Index: the key.
DELETE FROM meta WHERE name = ?1

-- name: under_way
-- How many operations would be left half done if the queue were sealed now.
SELECT (SELECT count(*) FROM running) + (SELECT count(*) FROM release_due) + (SELECT count(*) FROM unpack_due)

-- name: move_triggers
-- The triggers that close a queue in transfer: those whose names begin with ?1.
SELECT name FROM sqlite_schema WHERE type = 'trigger' AND substr(name, 1, length(?1)) = ?1

-- name: edges_from
-- What a job depends on. Index: edge_child.
SELECT parent_id, met, joined FROM edge INDEXED BY edge_child WHERE child_id = ?1

-- name: known
-- Which of the jobs in ?1 are there. Index: the unique one on job_id.
SELECT job_id FROM job WHERE job_id IN (SELECT value FROM json_each(?1))

-- name: known_anywhere
-- Which of the jobs in ?1 are there, or in the archive. Indexes: the unique one on job_id; the key of the archive.
SELECT value FROM json_each(?1)
WHERE EXISTS (SELECT 1 FROM job WHERE job_id = value) OR EXISTS (SELECT 1 FROM archive WHERE job_id = value)

-- name: restore_edge
-- A repeat changes nothing.
INSERT OR IGNORE INTO edge (child_id, parent_id, met, joined) VALUES (?1, ?2, ?3, ?4)

-- name: restore_step
-- A repeat changes nothing.
INSERT OR IGNORE INTO step (job_id, kind, name, answer, attempt, recorded_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- name: restore_mailbox
-- A repeat changes nothing.
INSERT OR IGNORE INTO mailbox (event_key, content, expires_at) VALUES (?1, ?2, ?3)

-- name: restore_output
-- A repeat changes nothing.
INSERT OR IGNORE INTO output (job_id, attempt, take, first, last, size, written_at, text)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)

-- name: restore_archive
-- A repeat changes nothing.
INSERT OR IGNORE INTO archive (job_id, archived_at, status, has_files, details) VALUES (?1, ?2, ?3, ?4, ?5)

-- name: restore_guard
-- A repeat changes nothing.
INSERT OR IGNORE INTO dedup (dedup_key, job_id, until) VALUES (?1, ?2, ?3)

-- name: restore_counter
-- A repeat changes nothing.
INSERT OR IGNORE INTO counter (minute, job_type, queue, priority, outcome, bucket, count, ran_micros, waited_micros)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)

-- name: restore_sum
-- The sums that were exported replace what is there.
INSERT OR REPLACE INTO counter_sum (job_type, queue, outcome, bucket, count, ran_micros, waited_micros)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)

-- name: restore_queue
-- A repeat changes nothing.
INSERT OR IGNORE INTO queue ({queue_columns}) VALUES (?1, ?2, ?3, ?4, ?5, ?6)

-- name: restore_limit
-- A repeat changes nothing.
INSERT OR IGNORE INTO run_limit ({limit_columns}) VALUES ({limit_places})

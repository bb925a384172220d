-- name: insert
-- Store what was submitted of one job. ?1 its position, ?2 now; from ?3 the fields of NewJob that every insert writes.
INSERT INTO job (seq, created_at, {new_columns})
VALUES (?1, ?2, {new_values})

-- name: insert_usual
-- The same of a job that has nothing rare: from ?3 the fields that every job has.
INSERT INTO job (seq, created_at, {usual_columns})
VALUES (?1, ?2, {usual_values})

-- name: insert_alike
-- The same of many jobs in a row, ?1 the position of the first, that differ only in the id and the payload: ?3 lists the
-- two of each as one text. From ?4 the fields that they share.
INSERT INTO job (seq, created_at, job_id, payload, {shared_columns})
SELECT ?1 - 1 + rowid, ?2, substr(value, 1, {id_length}), substr(value, {id_length} + 1), {shared_values} FROM carray(?3)

-- name: insert_special
-- Store what was submitted of one job, with all its options.
INSERT INTO job (seq, {fact_columns})
VALUES (:seq, {fact_values})

-- name: insert_ready
-- Plain jobs from ?1 on, just stored, wait for a worker. Index: the key.
INSERT INTO ready (queue, job_type, fair, parked, priority, scheduled_for, job_id, seq, payload_version, suspicion,
    attempt, failures, version, awaited, fairness_key, fairness_weight)
SELECT queue, job_type, fairness_key IS NOT NULL, 0, priority, scheduled_for, job_id, seq, payload_version, 0,
    0, 0, 1, 0, fairness_key, coalesce(fairness_weight, 1)
FROM job
WHERE seq >= ?1 AND scheduled_for <= ?2

-- name: insert_later
-- Plain jobs from ?1 on, just stored, wait for their time. Index: the key.
INSERT INTO later (seq, status, queue, job_type, priority, scheduled_for, attempt, failures, version, awaited)
SELECT seq, 'scheduled', queue, job_type, priority, scheduled_for, 0, 0, 1, 0
FROM job
WHERE seq >= ?1 AND scheduled_for > ?2

-- name: reusable
-- The newest completed job with the same type and content; the one that ran, where this one was reused itself; and how
-- long that took. Not one whose rows are withdrawn, or are about to be, for their job runs again. Index: ended_content.
SELECT j.job_id, coalesce(d.reused_from, j.job_id), coalesce(
    (SELECT max(0, o.completed_at - o.started_at) FROM job AS ran JOIN ended AS o ON o.seq = ran.seq
     WHERE ran.job_id = coalesce(d.reused_from, j.job_id)),
    (SELECT a.details ->> 'processing_micros' FROM archive AS a WHERE a.job_id = d.reused_from), 0)
FROM ended AS e INDEXED BY ended_content CROSS JOIN job AS j ON j.seq = e.seq LEFT JOIN detail AS d ON d.seq = e.seq
WHERE e.content_hash = :content_hash AND e.job_type = :job_type AND e.status = 'completed' AND e.completed_at >= :since
  AND (d.rows_of IS NULL
    OR EXISTS (SELECT 1 FROM job AS rows_of JOIN ended AS r ON r.seq = rows_of.seq
        WHERE rows_of.job_id = d.rows_of AND r.attempt = d.rows_attempt AND r.status = 'completed')
    OR EXISTS (SELECT 1 FROM archive AS k WHERE k.job_id = d.rows_of AND k.details ->> 'attempt' = d.rows_attempt))
ORDER BY e.completed_at DESC
LIMIT 1

-- name: donated
-- What a job that is reused hands on. Indexes: the keys.
SELECT e.result, e.result_artifact, d.metrics, d.result_tables,
    CASE WHEN d.result_tables IS NOT NULL THEN coalesce(d.rows_of, j.job_id) END,
    CASE WHEN d.result_tables IS NOT NULL THEN coalesce(d.rows_attempt, e.attempt) END,
    coalesce(max(0, e.completed_at - e.started_at), 0)
FROM job AS j JOIN ended AS e ON e.seq = j.seq LEFT JOIN detail AS d ON d.seq = j.seq
WHERE j.job_id = ?1

-- name: joinable
-- The identical job that is on its way and does not itself wait on one. Index: job_content.
SELECT j.job_id
FROM job AS j INDEXED BY job_content
WHERE j.content_hash = :content_hash AND j.job_type = :job_type
  AND NOT EXISTS (SELECT 1 FROM ended AS e WHERE e.seq = j.seq)
  AND NOT EXISTS (SELECT 1 FROM detail AS d WHERE d.seq = j.seq AND d.joins IS NOT NULL)
ORDER BY j.seq
LIMIT 1

-- name: dedup_target
-- The job that a dedup key belongs to, and until when. Index: the key.
SELECT job_id, until FROM dedup WHERE dedup_key = ?1

-- name: save_dedup
-- Let a dedup key belong to a job.
INSERT OR REPLACE INTO dedup (dedup_key, job_id, until) VALUES (?1, ?2, ?3)

-- name: dedup_key_of
-- The dedup key of a job. Index: the unique one on job_id.
SELECT dedup_key FROM job WHERE job_id = ?1

-- name: seq_of
-- The position of a job. Index: the unique one on job_id.
SELECT seq FROM job WHERE job_id = ?1

-- name: root_of
-- The root of the tree that a job is in, which may be itself. Index: the unique one on job_id.
SELECT coalesce(root_job_id, job_id) FROM job WHERE job_id = ?1

-- name: insert_join
-- A new job waits for the identical one ?2.
INSERT INTO detail (seq, joins) VALUES (?1, ?2)

-- name: insert_edge
-- A new job depends on another.
INSERT INTO edge (parent_id, child_id, met, joined) VALUES (?1, ?2, ?3, ?4)

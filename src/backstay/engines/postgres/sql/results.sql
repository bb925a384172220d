-- name: rows_declare_lock
-- One who changes result tables at a time: the others wait, and find it done.
SELECT pg_advisory_xact_lock(hashtextextended('backstay.result_table', 0))

-- name: rows_declare
-- A result table as it is from here on. Index: result_table_pkey.
INSERT INTO backstay.result_table (name, definition) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET definition = excluded.definition

-- name: rows_vector
-- The schema in which pgvector is.
SELECT n.nspname::text FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace WHERE e.extname = 'vector'

-- name: rows_tables
-- All result tables; there are not many.
SELECT definition FROM backstay.result_table ORDER BY name

-- name: rows_table
-- One of them: names that differ in case alone are one table elsewhere, so they are one here. There are not many.
SELECT definition FROM backstay.result_table WHERE lower(name) = lower($1)

-- name: rows_holder
-- Who holds a job, and in which result tables it has rows. Indexes: job_pkey, running_pkey, detail_pkey.
SELECT r.attempt, r.token, d.result_tables
FROM backstay.job AS j LEFT JOIN backstay.running AS r ON r.job_id = j.job_id
LEFT JOIN backstay.detail AS d ON d.job_id = j.job_id
WHERE j.job_id = $1

-- name: rows_add_table
-- A job that is held has rows in one more table, by which it will be found once it has completed. Index: running_pkey.
WITH held AS (
    UPDATE backstay.running SET findable = true WHERE job_id = $2 AND attempt = $3 AND token = $4 RETURNING job_id
)
INSERT INTO backstay.detail AS d (job_id, result_tables) SELECT job_id, jsonb_build_array($1::text)::text FROM held
ON CONFLICT (job_id) DO UPDATE SET
    result_tables = (coalesce(d.result_tables, '[]')::jsonb || excluded.result_tables::jsonb)::text

-- name: rows_latest
-- The job with rows of a subject and type that completed last. Those of one that reused them may be withdrawn.
-- Index: ended_latest.
SELECT e.job_id::text FROM backstay.ended AS e LEFT JOIN LATERAL (
    SELECT rows_of, rows_attempt FROM backstay.detail WHERE job_id = e.job_id OFFSET 0) AS d ON true
WHERE e.subject = $1 AND e.job_type = $2 AND e.status = 'completed'
  AND (d.rows_of IS NULL
    OR EXISTS (SELECT 1 FROM backstay.standing AS r WHERE r.job_id = d.rows_of AND r.attempt = d.rows_attempt)
    OR EXISTS (SELECT 1 FROM backstay.archive AS k
        WHERE k.job_id = d.rows_of AND (k.details::json ->> 'attempt')::integer = d.rows_attempt))
ORDER BY e.completed_at DESC LIMIT 1

-- name: rows_archived
-- In which tables an archived job has left rows. Index: archive_pkey.
SELECT details::json ->> 'result_tables' FROM backstay.archive WHERE job_id = $1

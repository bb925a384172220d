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
-- Who holds a job, and in which result tables it has rows. Index: job_pkey.
SELECT status, attempt, claim_token, result_tables FROM backstay.job WHERE job_id = $1

-- name: rows_add_table
-- A job that is held has rows in one more table. Index: job_pkey.
UPDATE backstay.job AS j SET result_tables = (coalesce(j.result_tables, '[]')::jsonb || to_jsonb($1::text))::text
WHERE j.job_id = $2 AND (j.status || '') = 'processing' AND j.attempt = $3 AND j.claim_token = $4

-- name: rows_latest
-- The job with rows of a subject and type that completed last. Those of one that reused them may be withdrawn.
-- Index: job_latest.
SELECT job_id::text FROM backstay.job AS d
WHERE subject = $1 AND job_type = $2 AND status = 'completed' AND result_tables IS NOT NULL
  AND (rows_of IS NULL
    OR EXISTS (SELECT 1 FROM backstay.job AS r WHERE r.job_id = d.rows_of AND r.attempt = d.rows_attempt)
    OR EXISTS (SELECT 1 FROM backstay.archive AS k
        WHERE k.job_id = d.rows_of AND (k.details::json ->> 'attempt')::integer = d.rows_attempt))
ORDER BY completed_at DESC LIMIT 1

-- name: rows_archived
-- In which tables an archived job has left rows. Index: archive_pkey.
SELECT details::json ->> 'result_tables' FROM backstay.archive WHERE job_id = $1

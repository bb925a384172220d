-- name: insert
-- Store one job. ?1 status, ?2 now, ?3 history; from ?4 the fields of NewJob that every insert writes.
INSERT INTO job (status, created_at, updated_at, history, {new_columns})
VALUES (?1, ?2, ?2, ?3, {new_values})

-- name: insert_extras
-- What a special submission adds to its row, in the transaction that inserted it.
UPDATE job
SET dedup_key = :dedup_key, unmet_dependencies = :unmet, parked = :parked, rate_parked = :rate_parked, joins = :joins,
    trigger_rule = :trigger_rule,
    rate_key = :rate_key, rate_count = :rate_count, rate_micros = :rate_micros, schedule = :schedule, tick_at = :tick_at
WHERE job_id = :job_id

-- name: insert_reused
-- Complete a job that was just inserted with the result of the identical job :donor, which :ran has brought.
UPDATE job
SET completed_at = :now, progress = 1, stage = 'complete', reused_from = :ran, status = 'completed',
    (result, result_artifact, metrics, result_tables, rows_of, rows_attempt) = (
        SELECT result, result_artifact, metrics, result_tables,
            CASE WHEN result_tables IS NOT NULL THEN coalesce(rows_of, job_id) END,
            CASE WHEN result_tables IS NOT NULL THEN coalesce(rows_attempt, attempt) END
        FROM job WHERE job_id = :donor)
WHERE job_id = :job_id

-- name: reusable
-- The newest completed job with the same type and content; the one that ran, where this one was reused itself; and how
-- long that took. Not one whose rows are withdrawn, or are about to be, for their job runs again. Index: job_content.
SELECT d.job_id, coalesce(d.reused_from, d.job_id), coalesce(
    (SELECT max(0, o.completed_at - o.started_at) FROM job AS o WHERE o.job_id = coalesce(d.reused_from, d.job_id)),
    (SELECT a.details ->> 'processing_micros' FROM archive AS a WHERE a.job_id = d.reused_from), 0)
FROM job AS d INDEXED BY job_content
WHERE d.content_hash = :content_hash AND d.job_type = :job_type AND d.status = 'completed' AND d.completed_at >= :since
  AND (d.rows_of IS NULL
    OR EXISTS (SELECT 1 FROM job AS r WHERE r.job_id = d.rows_of AND r.attempt = d.rows_attempt
        AND r.status || '' = 'completed')
    OR EXISTS (SELECT 1 FROM archive AS k WHERE k.job_id = d.rows_of AND k.details ->> 'attempt' = d.rows_attempt))
ORDER BY d.completed_at DESC
LIMIT 1

-- name: joinable
-- The identical job that is on its way and does not itself wait on one. Index: job_content.
SELECT job_id
FROM job
WHERE content_hash = :content_hash AND job_type = :job_type AND completed_at IS NULL AND joins IS NULL
  AND status IN ('waiting', 'scheduled', 'pending', 'processing', 'retrying')
ORDER BY seq
LIMIT 1

-- name: awaited
-- The jobs in ?1 have someone who waits on them: their completion leaves the common path.
UPDATE job SET awaited = 1 WHERE job_id IN (SELECT value FROM json_each(?1)) AND awaited = 0

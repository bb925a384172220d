-- The job with rows of a subject and type that completed last. Those of one that reused them may be withdrawn.
-- Index: job_latest.
SELECT job_id::text FROM holdfast.job AS d
WHERE subject = $1 AND job_type = $2 AND status = 'completed' AND result_tables IS NOT NULL
  AND (rows_of IS NULL
    OR EXISTS (SELECT 1 FROM holdfast.job AS r WHERE r.job_id = d.rows_of AND r.attempt = d.rows_attempt)
    OR EXISTS (SELECT 1 FROM holdfast.archive AS k
        WHERE k.job_id = d.rows_of AND (k.details::json ->> 'attempt')::integer = d.rows_attempt))
ORDER BY completed_at DESC LIMIT 1

-- Settle completions as one set: those of jobs whose end sets nothing else free, which is nearly all. Each is [job_id, attempt, token, result, worker, parent], and counts with the parent that it names, so that has to be right; served by the unique index on job_id. +status keeps the planner from walking all processing rows once per job.
UPDATE job
SET status = 'completed', version = version + 1, completed_at = :now, updated_at = :now, lease_expires_at = NULL,
    progress = 1, stage = 'complete', result = s.result,
    history = CASE version % 64 WHEN 63 THEN trim_history(history) ELSE history END
        || char(10) || '[' || (version + 1) || :event || s.attempt || ',' || s.worker || ']'
FROM (
    SELECT value ->> 0 AS job_id, value ->> 1 AS attempt, value ->> 2 AS token, value ->> 3 AS result,
        value -> 4 AS worker, value ->> 5 AS parent
    FROM json_each(:batch)
) AS s
WHERE job.job_id = s.job_id AND job.awaited = 0 AND job.concurrency_key IS NULL AND job.parent_job_id IS s.parent
    AND +job.status = 'processing' AND job.attempt = s.attempt AND job.claim_token = s.token

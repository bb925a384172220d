-- Prolong the claims in :batch, each [job_id, attempt, token].
UPDATE job
SET lease_expires_at = :lease
FROM (
    SELECT value ->> 0 AS job_id, value ->> 1 AS attempt, value ->> 2 AS token FROM json_each(:batch)
) AS s
WHERE job.job_id = s.job_id AND +job.status = 'processing' AND job.attempt = s.attempt AND job.claim_token = s.token

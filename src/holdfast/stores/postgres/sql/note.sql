-- Keep progress, stage, logs and metrics of running attempts, in the order of ids. Answers with those that still run.
WITH locked AS MATERIALIZED (
    SELECT j.seq, n.*
    FROM (
        SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::double precision[], $5::text[], $6::text[],
                $7::text[], $8::text[], $9::text[])
            AS n (job_id, attempt, token, progress, stage, logs, log_location, metrics, artifacts)
        ORDER BY job_id
    ) AS n
    CROSS JOIN LATERAL (
        SELECT seq, status, attempt, claim_token FROM holdfast.job WHERE job_id = n.job_id FOR NO KEY UPDATE
    ) AS j
    WHERE (j.status || '') = 'processing' AND j.attempt = n.attempt AND j.claim_token = n.token
)
UPDATE holdfast.job AS j
SET progress = coalesce(l.progress, j.progress), stage = coalesce(l.stage, j.stage), logs = coalesce(l.logs, j.logs),
    log_location = coalesce(l.log_location, j.log_location), metrics = coalesce(l.metrics, j.metrics),
    artifacts = coalesce(l.artifacts, j.artifacts), updated_at = coalesce($10::bigint, holdfast.micros())
FROM locked AS l WHERE j.seq = l.seq
RETURNING j.job_id::text

-- Keep a step's answer while the claim holds; the first answer stays.
INSERT INTO holdfast.step (job_id, name, answer, attempt, recorded_at)
SELECT j.job_id, $4, $5, $2, coalesce($6::bigint, holdfast.micros()) FROM holdfast.job AS j
WHERE j.job_id = $1::uuid AND (j.status || '') = 'processing' AND j.attempt = $2 AND j.claim_token = $3
FOR SHARE
ON CONFLICT (job_id, name) DO NOTHING

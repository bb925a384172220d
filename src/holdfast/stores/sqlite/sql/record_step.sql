-- Keep a step's answer while the claim holds; the first answer stays.
INSERT INTO step (job_id, name, answer, attempt, recorded_at)
SELECT :job_id, :name, :answer, :attempt, :now
FROM job
WHERE job_id = :job_id AND +status = 'processing' AND attempt = :attempt AND claim_token = :token
ON CONFLICT (job_id, name) DO NOTHING

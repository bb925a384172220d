-- Where jobs stand: to answer for writes that did not apply.
SELECT job_id::text, status, attempt, claim_token FROM holdfast.job WHERE job_id = ANY ($1::uuid[])

-- Where the jobs in ?1 stand: for those who wait, and to answer for writes that did not apply.
SELECT job_id, status, attempt, claim_token
FROM job
WHERE job_id IN (SELECT value FROM json_each(?1))

-- Who holds a job, and in which result tables it has rows. Index: job_pkey.
SELECT status, attempt, claim_token, result_tables FROM holdfast.job WHERE job_id = $1

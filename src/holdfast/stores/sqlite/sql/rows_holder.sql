-- Who holds a job, and in which result tables it has rows. Index: the job_id's own.
SELECT status, attempt, claim_token, result_tables FROM job WHERE job_id = ?1

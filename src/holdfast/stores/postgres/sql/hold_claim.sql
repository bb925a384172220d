-- Whether a claim holds, and so until the end of the transaction.
SELECT status, attempt, claim_token FROM holdfast.job WHERE job_id = $1::uuid FOR NO KEY UPDATE

-- What an earlier try of the same claim request took and still holds. Index: job_lease; only processing rows.
SELECT json_group_array(seq)
FROM job INDEXED BY job_lease
WHERE status = 'processing' AND claim_token = :token AND worker_id = :worker_id

-- Hold these jobs until the end of the transaction, in the order of their ids.
SELECT 1 FROM holdfast.job WHERE job_id = ANY ($1::uuid[]) ORDER BY job_id FOR UPDATE

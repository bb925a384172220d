-- Hold jobs until the end of the transaction, in the order of their ids: whoever retries one comes before or after.
SELECT 1 FROM holdfast.job WHERE seq = ANY ($1::bigint[]) ORDER BY job_id FOR UPDATE

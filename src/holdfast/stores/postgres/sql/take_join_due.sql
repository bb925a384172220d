-- Take marks of parents whose last child was ended by SQL.
DELETE FROM holdfast.join_due WHERE job_id IN (
    SELECT job_id FROM holdfast.join_due ORDER BY job_id LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING job_id::text

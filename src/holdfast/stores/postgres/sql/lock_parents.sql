-- Hold the parents of children that end, in the order of their ids, before any child is held.
SELECT 1 FROM holdfast.job WHERE job_id = ANY ($1::uuid[]) ORDER BY job_id FOR NO KEY UPDATE

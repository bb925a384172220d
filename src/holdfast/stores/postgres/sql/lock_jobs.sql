-- Hold these jobs until the end of the transaction, in the order of their ids; with their parents, whose numbers change
-- with them, and with those that the jobs in $2 depend on, which may wait for them again.
SELECT 1 FROM holdfast.job
WHERE job_id = ANY ($1::uuid[]
    || ARRAY(SELECT parent_job_id FROM holdfast.job WHERE job_id = ANY ($1::uuid[]) AND parent_job_id IS NOT NULL)
    || ARRAY(SELECT parent_id FROM holdfast.edge WHERE child_id = ANY ($2::uuid[])))
ORDER BY job_id FOR UPDATE

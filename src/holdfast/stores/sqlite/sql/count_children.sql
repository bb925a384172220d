-- What children add to the numbers of :parent. No version and no event: as with a lease, nothing has become of the job.
-- Its answer tells how it stands, for those that wait for the last of them. Index: the unique one on job_id.
UPDATE job
SET children = coalesce(children, 0) + :children,
    open_children = coalesce(open_children, 0) + :open,
    failed_children = coalesce(failed_children, 0) + :failed,
    cancelled_children = coalesce(cancelled_children, 0) + :cancelled
WHERE job_id = :parent
RETURNING awaits, children, open_children, failed_children, cancelled_children, attempt, parent_job_id, job_type, queue,
    priority

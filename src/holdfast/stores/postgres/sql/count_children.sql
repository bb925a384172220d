-- What children add to their parents' numbers, a row for each parent. No version and no event: as with a lease, nothing
-- has become of the job. The answer tells how each stands, for those that wait for the last of them.
UPDATE holdfast.job AS p
SET children = coalesce(p.children, 0) + n.children,
    open_children = coalesce(p.open_children, 0) + n.still_open,
    failed_children = coalesce(p.failed_children, 0) + n.failed,
    cancelled_children = coalesce(p.cancelled_children, 0) + n.cancelled
FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::integer[], $5::integer[])
    AS n (job_id, children, still_open, failed, cancelled)
WHERE p.job_id = n.job_id
RETURNING p.job_id::text, p.awaits, p.children, p.open_children, p.failed_children, p.cancelled_children,
    p.parent_job_id::text, p.job_type, p.queue, p.priority

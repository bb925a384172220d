-- Of jobs by seq and completed_at, those that stand as they were read and whose end has reached all that waited for it.
-- With each its tree: the root, and how many jobs are in it now. Indexes: the primary key, job_root.
SELECT j.seq, coalesce(j.root_job_id, j.job_id)::text,
    (SELECT count(*) FROM holdfast.job AS member WHERE member.root_job_id = coalesce(j.root_job_id, j.job_id))
    + (j.root_job_id IS NULL OR EXISTS (SELECT 1 FROM holdfast.job AS root WHERE root.job_id = j.root_job_id))::integer
FROM unnest($1::bigint[], $2::bigint[]) AS b (seq, ended_at) JOIN holdfast.job AS j ON j.seq = b.seq
WHERE j.completed_at = b.ended_at AND (j.status || '') IN ('completed', 'failed', 'cancelled')
  AND NOT EXISTS (SELECT 1 FROM holdfast.release_due WHERE parent_id = j.job_id)

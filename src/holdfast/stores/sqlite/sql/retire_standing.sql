-- Of the jobs in ?1, each [seq, completed_at], those that stand as they were read and whose end has reached all that
-- waited for it. With each its tree: the root, and how many jobs are in it now. Indexes: job's key, job_root; a tree is
-- counted once, however many of its jobs are asked for.
WITH standing AS MATERIALIZED (
    SELECT job.seq AS seq, coalesce(job.root_job_id, job.job_id) AS root
    FROM json_each(?1) AS each JOIN job ON job.seq = each.value ->> 0
    WHERE job.completed_at = each.value ->> 1
      AND (job.status = 'completed' OR job.status = 'failed' OR job.status = 'cancelled')
      AND coalesce(job.open_children, 0) = 0 -- or some of its children are still on their way
      AND NOT EXISTS (SELECT 1 FROM release_due WHERE parent_id = job.job_id)
), tree AS MATERIALIZED (
    SELECT root, (SELECT count(*) FROM job AS member INDEXED BY job_root WHERE member.root_job_id = roots.root)
        + EXISTS (SELECT 1 FROM job AS top WHERE top.job_id = roots.root) AS size
    FROM (SELECT DISTINCT root FROM standing) AS roots
)
SELECT standing.seq, standing.root, tree.size FROM standing JOIN tree ON tree.root = standing.root

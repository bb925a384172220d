-- Of jobs by seq and completed_at, those that stand as they were read and whose end has reached all that waited for it.
-- With each its tree: the root, and how many jobs are in it now. Indexes: the primary key, job_root; a tree is counted
-- once, however many of its jobs are asked for.
WITH standing AS MATERIALIZED (
    SELECT j.seq, coalesce(j.root_job_id, j.job_id) AS root
    FROM unnest($1::bigint[], $2::bigint[]) AS b (seq, ended_at) JOIN holdfast.job AS j ON j.seq = b.seq
    WHERE j.completed_at = b.ended_at AND (j.status || '') IN ('completed', 'failed', 'cancelled')
      AND coalesce(j.open_children, 0) = 0 -- or some of its children are still on their way
      AND NOT EXISTS (SELECT 1 FROM holdfast.release_due WHERE parent_id = j.job_id)
), tree AS MATERIALIZED (
    SELECT root, (SELECT count(*) FROM holdfast.job AS member WHERE member.root_job_id = roots.root)
        + (SELECT count(*) FROM holdfast.job AS top WHERE top.job_id = roots.root) AS size
    FROM (SELECT DISTINCT root FROM standing) AS roots
)
SELECT standing.seq, standing.root::text, tree.size FROM standing JOIN tree ON tree.root = standing.root

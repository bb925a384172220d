-- ?1 waits again: of its edges, those to jobs that have not ended count anew, the others count no more. Index: edge_child.
UPDATE edge INDEXED BY edge_child
SET met = NOT EXISTS (SELECT 1 FROM job AS p WHERE p.job_id = edge.parent_id AND p.completed_at IS NULL)
WHERE child_id = ?1 AND joined = 0

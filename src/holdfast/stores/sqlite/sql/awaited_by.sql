-- Those that ?1 waits on have someone who does: their completion leaves the common path. Index: edge_child.
UPDATE job SET awaited = 1
WHERE job_id IN (SELECT parent_id FROM edge INDEXED BY edge_child WHERE child_id = ?1 AND met = 0) AND awaited = 0

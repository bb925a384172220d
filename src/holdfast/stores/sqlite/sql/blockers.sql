-- How many jobs that ?1 depends on have not completed, in the jobs or the archive. Index: edge_child.
SELECT count(*)
FROM edge AS e LEFT JOIN job AS p ON p.job_id = e.parent_id LEFT JOIN archive AS a ON a.job_id = e.parent_id
WHERE e.child_id = ?1 AND coalesce(p.status, a.status, 'completed') <> 'completed' AND e.joined = 0

-- How many jobs that ?1 depends on have not completed. Index: edge_child.
SELECT count(*)
FROM edge AS e JOIN job AS p ON p.job_id = e.parent_id
WHERE e.child_id = ?1 AND p.status <> 'completed' AND e.parent_id IS NOT (SELECT joins FROM job WHERE job_id = ?1)

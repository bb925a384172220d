-- How many jobs that $1 depends on have not completed, in the jobs or the archive. Index: edge_child.
SELECT count(*)
FROM holdfast.edge AS e
LEFT JOIN holdfast.job AS p ON p.job_id = e.parent_id
LEFT JOIN holdfast.archive AS a ON a.job_id = e.parent_id
WHERE e.child_id = $1::uuid AND coalesce(p.status, a.status, 'completed') <> 'completed' AND NOT e.joined

-- How those stand that $1 depends on, in the jobs or the archive, and how many of each; identical jobs that it only
-- joined are left out. Index: edge_child.
SELECT coalesce(p.status, a.status, 'completed'), count(*)
FROM holdfast.edge AS e
LEFT JOIN holdfast.job AS p ON p.job_id = e.parent_id
LEFT JOIN holdfast.archive AS a ON a.job_id = e.parent_id
WHERE e.child_id = $1::uuid AND NOT e.joined
GROUP BY 1

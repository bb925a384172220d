-- Jobs that still wait on $1, locked in the order of their ids. Index: edge_unmet.
SELECT c.job_id::text, c.status, c.attempt, c.unmet_dependencies, c.on_dependency_failure, c.scheduled_for,
    c.joins::text, c.job_type, c.queue, c.priority
FROM holdfast.edge AS e JOIN holdfast.job AS c ON c.job_id = e.child_id
WHERE e.parent_id = $1::uuid AND NOT e.met
ORDER BY c.job_id
LIMIT $2
FOR UPDATE OF c

-- Jobs that still wait on :parent. Index: edge_unmet.
SELECT e.child_id, c.status, c.attempt, c.unmet_dependencies, c.on_dependency_failure, c.scheduled_for, c.joins,
    c.job_type, c.queue, c.priority
FROM edge AS e INDEXED BY edge_unmet JOIN job AS c ON c.job_id = e.child_id
WHERE e.parent_id = :parent AND e.met = 0
LIMIT :limit

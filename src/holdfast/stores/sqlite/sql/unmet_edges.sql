-- Jobs that still wait on :parent. Index: edge_unmet.
SELECT e.child_id, c.status, c.awaits, c.attempt, c.unmet_dependencies, c.trigger_rule, c.on_dependency_failure,
    c.scheduled_for, c.joins, c.parent_job_id, c.job_type, c.queue, c.priority
FROM edge AS e INDEXED BY edge_unmet JOIN job AS c ON c.job_id = e.child_id
WHERE e.parent_id = :parent AND e.met = 0
LIMIT :limit

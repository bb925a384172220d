-- Jobs that still wait on $1, locked in the order of their ids. Index: edge_unmet.
SELECT c.job_id::text, c.status, c.awaits, c.unmet_dependencies, coalesce(c.trigger_rule, 'all_success'),
    c.on_dependency_failure, c.scheduled_for, c.joins::text, c.parent_job_id::text, c.job_type, c.queue, c.priority
FROM holdfast.edge AS e JOIN holdfast.job AS c ON c.job_id = e.child_id
WHERE e.parent_id = $1::uuid AND NOT e.met
ORDER BY c.job_id
LIMIT $2
FOR UPDATE OF c

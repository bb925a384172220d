-- $1 waits again: of its edges, those to jobs that have not ended count anew, the others count no more; and those have
-- someone who waits on them. Index: edge_child.
WITH edges AS (
    UPDATE holdfast.edge AS e
    SET met = NOT EXISTS (SELECT FROM holdfast.job AS p WHERE p.job_id = e.parent_id AND p.completed_at IS NULL)
    WHERE e.child_id = $1::uuid AND NOT e.joined
    RETURNING e.parent_id, e.met
)
UPDATE holdfast.job SET awaited = true WHERE job_id = ANY (ARRAY(SELECT parent_id FROM edges WHERE NOT met)) AND NOT awaited

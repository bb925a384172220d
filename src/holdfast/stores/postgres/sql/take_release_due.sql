-- Take such marks, to go on from them.
DELETE FROM holdfast.release_due WHERE parent_id IN (
    SELECT parent_id FROM holdfast.release_due ORDER BY parent_id LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING parent_id::text

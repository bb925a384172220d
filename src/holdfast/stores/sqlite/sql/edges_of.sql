-- The edges of one job, bounded, and how many there are of each kind. Index: edge_child.
SELECT
    (SELECT json_group_array(parent_id) FROM (SELECT parent_id FROM edge WHERE child_id = ?1 LIMIT ?2)),
    (SELECT json_group_array(child_id) FROM (SELECT child_id FROM edge WHERE parent_id = ?1 LIMIT ?2)),
    (SELECT count(*) FROM edge WHERE parent_id = ?1)

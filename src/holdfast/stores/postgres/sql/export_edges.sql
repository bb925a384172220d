-- What these jobs depend on. Index: edge_child.
SELECT child_id::text, parent_id::text, met, joined FROM holdfast.edge WHERE child_id = ANY ($1::uuid[])

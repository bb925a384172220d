-- For each job: what it depends on, what depends on it, and how many those are. Indexes: edge_child, the primary key.
SELECT id::text,
    (SELECT coalesce(json_agg(parent_id), '[]')::text FROM (
        SELECT parent_id FROM holdfast.edge WHERE child_id = id ORDER BY parent_id LIMIT $2) AS p),
    (SELECT coalesce(json_agg(child_id), '[]')::text FROM (
        SELECT child_id FROM holdfast.edge WHERE parent_id = id ORDER BY child_id LIMIT $2) AS c),
    (SELECT count(*) FROM holdfast.edge WHERE parent_id = id)
FROM unnest($1::uuid[]) AS n (id)

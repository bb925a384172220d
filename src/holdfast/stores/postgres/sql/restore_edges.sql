-- Edges of restored jobs. Index: the primary key.
INSERT INTO holdfast.edge (child_id, parent_id, met, joined) VALUES ($1::uuid, $2::uuid, $3, $4) ON CONFLICT DO NOTHING

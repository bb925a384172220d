-- Consume edges, each once.
UPDATE holdfast.edge SET met = true WHERE parent_id = $1::uuid AND child_id = ANY ($2::uuid[]) AND NOT met

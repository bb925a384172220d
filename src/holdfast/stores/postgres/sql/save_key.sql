-- Store a key whole, in place of one of its id; where it is to be new ($12), only if there is none.
INSERT INTO holdfast.api_key (key_id, name, secret_hash, scopes, queues, created_at, created_by, expires_at, revoked_at,
    revoked_by, of)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (key_id) DO UPDATE SET name = excluded.name, secret_hash = excluded.secret_hash, scopes = excluded.scopes,
    queues = excluded.queues, created_at = excluded.created_at, created_by = excluded.created_by,
    expires_at = excluded.expires_at, revoked_at = excluded.revoked_at, revoked_by = excluded.revoked_by,
    of = excluded.of
WHERE NOT $12::boolean

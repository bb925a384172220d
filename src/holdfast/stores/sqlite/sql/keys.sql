-- Every key, by id.
SELECT key_id, name, secret_hash, scopes, queues, created_at, created_by, expires_at, revoked_at, revoked_by, of
FROM api_key
ORDER BY key_id

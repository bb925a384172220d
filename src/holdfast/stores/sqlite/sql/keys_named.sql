-- Keys whose ids are in the JSON array ?1. Index: the primary key.
SELECT key_id, name, secret_hash, scopes, queues, created_at, created_by, expires_at, revoked_at, revoked_by, of
FROM api_key
WHERE key_id IN (SELECT value FROM json_each(?1))
ORDER BY key_id

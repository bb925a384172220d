-- Keys of these ids, by id. Index: the primary key.
SELECT key_id, name, secret_hash, scopes, queues, created_at, created_by, expires_at, revoked_at, revoked_by, of
FROM holdfast.api_key
WHERE key_id = ANY ($1::text[])
ORDER BY key_id

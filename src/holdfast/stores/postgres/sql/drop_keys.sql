-- Forget keys. Index: the primary key.
DELETE FROM holdfast.api_key WHERE key_id = ANY ($1::text[])

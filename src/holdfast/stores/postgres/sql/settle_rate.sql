-- A rate key has no parked jobs any more.
UPDATE holdfast.rate SET full_at = $2, due_at = NULL, set_at = $3 WHERE rate_key = $1

-- A bucket has no parked jobs any more.
UPDATE holdfast.rate SET full_at = $4, due_at = NULL, set_at = $5
WHERE rate_key = $1 AND rate_count = $2 AND rate_micros = $3

-- Keep a bucket, and when its parked jobs are to be looked at; NULL keeps what is stored.
INSERT INTO holdfast.rate AS r (rate_key, full_at, due_at, set_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (rate_key) DO UPDATE SET full_at = excluded.full_at, due_at = coalesce(excluded.due_at, r.due_at),
    set_at = excluded.set_at

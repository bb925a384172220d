-- Keep a bucket, and when its parked jobs are to be looked at; NULL keeps what is stored.
INSERT INTO holdfast.rate AS r (rate_key, rate_count, rate_micros, full_at, due_at, set_at)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (rate_key, rate_count, rate_micros) DO UPDATE SET full_at = excluded.full_at,
    due_at = coalesce(excluded.due_at, r.due_at), set_at = excluded.set_at

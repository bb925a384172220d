-- Keep a bucket, and when its parked jobs are to be looked at; NULL keeps what is stored.
INSERT INTO rate (rate_key, full_at, due_at, set_at) VALUES (?1, coalesce(?2, 0), ?3, ?4)
ON CONFLICT (rate_key) DO UPDATE SET full_at = coalesce(?2, full_at), due_at = coalesce(?3, due_at), set_at = ?4

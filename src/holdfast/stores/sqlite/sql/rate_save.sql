-- Keep a bucket, and when its parked jobs are to be looked at; NULL keeps what is stored.
INSERT INTO rate (rate_key, rate_count, rate_micros, full_at, due_at, set_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT DO UPDATE SET full_at = ?4, due_at = coalesce(?5, due_at), set_at = ?6

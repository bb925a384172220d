-- When parked jobs of any rate key are to be looked at: now where a clock was set back. Indexes: rate_set, rate_due.
SELECT CASE WHEN EXISTS (SELECT 1 FROM holdfast.rate WHERE set_at > $2) THEN $1::bigint
    ELSE (SELECT due_at FROM holdfast.rate WHERE due_at < $3 ORDER BY due_at LIMIT 1) END

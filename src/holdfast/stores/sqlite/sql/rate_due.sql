-- The rate keys and rates whose parked jobs are to be looked at by ?1, the longest due first, and those that were last
-- written by a clock which was ahead of ?2. Indexes: rate_due, rate_set.
SELECT * FROM (
    SELECT rate_key, rate_count, rate_micros FROM rate INDEXED BY rate_due WHERE due_at <= ?1 ORDER BY due_at LIMIT ?3)
UNION
SELECT * FROM (SELECT rate_key, rate_count, rate_micros FROM rate INDEXED BY rate_set WHERE set_at > ?2 LIMIT ?3)

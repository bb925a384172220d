-- A full bucket is as good as none. Index: rate_full. One that a claim is just drawing from is left to it.
DELETE FROM holdfast.rate WHERE (rate_key, rate_count, rate_micros) IN (
    SELECT rate_key, rate_count, rate_micros FROM holdfast.rate WHERE full_at < $1 AND due_at IS NULL LIMIT 1000
    FOR UPDATE SKIP LOCKED)
  AND full_at < $1 AND due_at IS NULL

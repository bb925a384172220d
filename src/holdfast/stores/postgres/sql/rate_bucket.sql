-- When the bucket of a rate key and rate is full again by the clock $4, and when its parked jobs are to be looked at.
SELECT holdfast.bucket(full_at, set_at, $4::bigint), due_at FROM holdfast.rate
WHERE rate_key = $1 AND rate_count = $2 AND rate_micros = $3

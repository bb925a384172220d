-- When the bucket of a rate key is full again, and when its parked jobs are to be looked at.
SELECT holdfast.bucket(full_at, set_at, $2::bigint), due_at FROM holdfast.rate WHERE rate_key = $1

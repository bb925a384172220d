-- Take pending jobs whose key is full out of the claim's sight; $2: whether it is their rate key.
UPDATE holdfast.job SET parked = true, rate_parked = $2 WHERE seq = ANY ($1::bigint[]) AND (status || '') = 'pending'

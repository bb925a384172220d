-- Take pending jobs whose key is full out of the claim's sight; ?2: 1 where it is their rate key.
UPDATE job SET parked = 1, rate_parked = ?2 WHERE seq IN (SELECT value FROM json_each(?1)) AND +status = 'pending'

-- Take pending jobs whose key is full out of the claim's sight.
UPDATE job SET parked = 1 WHERE seq IN (SELECT value FROM json_each(?1)) AND +status = 'pending'

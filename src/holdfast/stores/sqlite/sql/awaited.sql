-- The jobs in ?1 have someone who waits on them: their completion leaves the common path.
UPDATE job SET awaited = 1 WHERE job_id IN (SELECT value FROM json_each(?1)) AND awaited = 0

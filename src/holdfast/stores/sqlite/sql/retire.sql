-- Remove the jobs in ?1, by seq: those that archive.sql has kept.
DELETE FROM job WHERE seq IN (SELECT value FROM json_each(?1)) RETURNING job_id

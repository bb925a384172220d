-- A page of guards after ?1. Index: the primary key.
SELECT dedup_key, job_id, until FROM dedup WHERE dedup_key > ?1 ORDER BY dedup_key LIMIT ?2

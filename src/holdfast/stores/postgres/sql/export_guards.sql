-- A page of guards after $1. Index: the primary key.
SELECT dedup_key, job_id::text, until FROM holdfast.dedup WHERE dedup_key > $1::text ORDER BY dedup_key LIMIT $2

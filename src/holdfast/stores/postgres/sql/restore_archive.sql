-- Rows of an archive as they were. Index: the primary key.
INSERT INTO holdfast.archive (job_id, archived_at, status, has_files, details) VALUES ($1::uuid, $2, $3, $4, $5)
ON CONFLICT DO NOTHING

-- The head of a file that is being written; whoever writes the same one waits here until this commits.
INSERT INTO holdfast.file AS f (job_id, attempt, name, size) VALUES ($1, $2, $3, $4)
ON CONFLICT (job_id, attempt, name) DO UPDATE SET size = excluded.size RETURNING f.file_id

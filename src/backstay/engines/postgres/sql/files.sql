-- name: file_drop
-- A file, its parts with it. Index: file_job_id_attempt_name_key.
DELETE FROM backstay.file WHERE job_id = $1 AND attempt = $2 AND name = $3

-- name: file_append
-- Add to a file of a job that is there, up to a limit, and not twice by the same call. Index: file_job_id_attempt_name_key.
WITH owner AS MATERIALIZED (
    SELECT job_id FROM backstay.job WHERE job_id = $1 FOR KEY SHARE
), grown AS (
    INSERT INTO backstay.file AS f (job_id, attempt, name, size, last_append)
    SELECT job_id, 0, $2, octet_length($3::bytea), $5 FROM owner
    ON CONFLICT (job_id, attempt, name) DO UPDATE
    SET size = f.size + excluded.size, last_append = excluded.last_append
    WHERE f.size < $4 AND f.last_append IS DISTINCT FROM excluded.last_append
    RETURNING f.file_id, f.size - octet_length($3::bytea) AS start
)
INSERT INTO backstay.file_part (file_id, start, content) SELECT file_id, start, $3 FROM grown

-- name: file_remove
-- All files of some jobs, their parts with them. Index: file_job_id_attempt_name_key.
DELETE FROM backstay.file WHERE job_id = ANY ($1::uuid[])

-- name: file_draft
-- The head of a file that is being written, of a job that is there, or archived with files that jobs which reused its
-- result still have: its row is held until the commit, so that retention cannot pass in between and leave the file
-- behind. Indexes: the keys of job and archive, file_job_id_attempt_name_key.
WITH owner AS MATERIALIZED (
    SELECT job_id FROM backstay.job WHERE job_id = $1 FOR KEY SHARE
), archived AS MATERIALIZED (
    SELECT job_id FROM backstay.archive WHERE job_id = $1 AND has_files FOR SHARE
)
INSERT INTO backstay.file AS f (job_id, attempt, name, size)
SELECT job_id, $2, $3, 0 FROM (SELECT job_id FROM owner UNION SELECT job_id FROM archived) AS o
ON CONFLICT (job_id, attempt, name) DO UPDATE SET size = 0 RETURNING f.file_id

-- name: file_fill
-- Some parts of it; those that are there are the same. Index: file_part_pkey.
INSERT INTO backstay.file_part (file_id, start, content) SELECT $1, start, content
FROM unnest($2::bigint[], $3::bytea[]) AS part (start, content)
ON CONFLICT (file_id, start) DO NOTHING

-- name: file_lock
-- Who finishes the same file waits here until the other has committed.
SELECT pg_advisory_xact_lock(hashtextextended('backstay file ' || $1::text, 0))

-- name: file_made
-- By which write the file is what it is. Index: file_job_id_attempt_name_key.
SELECT made FROM backstay.file WHERE job_id = $1 AND attempt = $2 AND name = $3

-- name: file_name
-- A file that is whole gets its name. Index: file_pkey.
UPDATE backstay.file SET name = $2, size = $3, made = $4 WHERE file_id = $1

-- name: file_size
-- Index: file_job_id_attempt_name_key.
SELECT file_id, size FROM backstay.file WHERE job_id = $1 AND attempt = $2 AND name = $3

-- name: file_parts
-- The parts that have a byte of [$2, $3), in order. Index: file_part_pkey.
SELECT start, content FROM backstay.file_part
WHERE file_id = $1 AND start < $3
  AND start >= (SELECT coalesce(max(start), 0) FROM backstay.file_part WHERE file_id = $1 AND start <= $2)
ORDER BY start

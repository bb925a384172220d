-- Add to a file of a job that is there, up to a limit, and not twice by the same call. Index: file_job_id_attempt_name_key.
WITH owner AS MATERIALIZED (
    SELECT job_id FROM holdfast.job WHERE job_id = $1 FOR KEY SHARE
), grown AS (
    INSERT INTO holdfast.file AS f (job_id, attempt, name, size, last_append)
    SELECT job_id, 0, $2, octet_length($3::bytea), $5 FROM owner
    ON CONFLICT (job_id, attempt, name) DO UPDATE
    SET size = f.size + excluded.size, last_append = excluded.last_append
    WHERE f.size < $4 AND f.last_append IS DISTINCT FROM excluded.last_append
    RETURNING f.file_id, f.size - octet_length($3::bytea) AS start
)
INSERT INTO holdfast.file_part (file_id, start, content) SELECT file_id, start, $3 FROM grown

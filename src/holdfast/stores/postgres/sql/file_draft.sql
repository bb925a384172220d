-- The head of a file that is being written, of a job that is there, or archived with files that jobs which reused its
-- result still have: its row is held until the commit, so that retention cannot pass in between and leave the file
-- behind. Indexes: the keys of job and archive, file_job_id_attempt_name_key.
WITH owner AS MATERIALIZED (
    SELECT job_id FROM holdfast.job WHERE job_id = $1 FOR KEY SHARE
), archived AS MATERIALIZED (
    SELECT job_id FROM holdfast.archive WHERE job_id = $1 AND has_files FOR SHARE
)
INSERT INTO holdfast.file AS f (job_id, attempt, name, size)
SELECT job_id, $2, $3, 0 FROM (SELECT job_id FROM owner UNION SELECT job_id FROM archived) AS o
ON CONFLICT (job_id, attempt, name) DO UPDATE SET size = 0 RETURNING f.file_id

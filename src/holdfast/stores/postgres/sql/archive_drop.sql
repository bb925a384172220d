-- Rows of the archive that are over their time there, with the guards that stand on them. Index: archive_age.
WITH over AS MATERIALIZED (
    SELECT job_id FROM holdfast.archive WHERE archived_at < $1 AND NOT has_files ORDER BY archived_at LIMIT $2
    FOR UPDATE SKIP LOCKED
), guards AS (
    DELETE FROM holdfast.dedup WHERE job_id IN (SELECT job_id FROM over)
), gone AS (
    DELETE FROM holdfast.archive WHERE job_id IN (SELECT job_id FROM over) RETURNING 1
)
SELECT count(*) FROM gone

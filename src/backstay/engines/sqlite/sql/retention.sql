-- name: retirable
-- Of the next ?2 jobs by arrival, those that ended before ?3; how far that went, and when the oldest of them arrived.
-- With each the root of its tree, NULL where it stands alone. Index: job_root.
-- Walks the table in the order of its key: no index on the hot path has to be kept for this.
SELECT
    json_group_array(json_array(seq, job_id, job_type, status, completed_at, CASE
        WHEN root_job_id IS NOT NULL THEN root_job_id
        WHEN EXISTS (SELECT 1 FROM job AS member INDEXED BY job_root WHERE member.root_job_id = arrived.job_id)
        THEN job_id END))
        FILTER (WHERE completed_at < ?3 AND (status = 'completed' OR status = 'failed' OR status = 'cancelled')),
    max(seq), min(created_at), count(*)
FROM (
    SELECT seq, job_id, job_type, status, completed_at, root_job_id, created_at
    FROM job NOT INDEXED
    WHERE seq > ?1
    ORDER BY seq
    LIMIT ?2
) AS arrived

-- name: tree_members
-- Every job of the tree of ?1, and how each stands. Index: job_root.
SELECT seq, job_id, job_type, status, completed_at FROM job WHERE job_id = ?1
UNION ALL
SELECT seq, job_id, job_type, status, completed_at FROM job INDEXED BY job_root WHERE root_job_id = ?1

-- name: retire_standing
-- Of the jobs in ?1, each [seq, completed_at], those that stand as they were read and whose end has reached all that
-- waited for it. With each its tree: the root, and how many jobs are in it now. Indexes: job's key, job_root; a tree is
-- counted once, however many of its jobs are asked for.
WITH standing AS MATERIALIZED (
    SELECT job.seq AS seq, coalesce(job.root_job_id, job.job_id) AS root
    FROM json_each(?1) AS each JOIN job ON job.seq = each.value ->> 0
    WHERE job.completed_at = each.value ->> 1
      AND (job.status = 'completed' OR job.status = 'failed' OR job.status = 'cancelled')
      AND coalesce(job.open_children, 0) = 0 -- or some of its children are still on their way
      AND NOT EXISTS (SELECT 1 FROM release_due WHERE parent_id = job.job_id)
), tree AS MATERIALIZED (
    SELECT root, (SELECT count(*) FROM job AS member INDEXED BY job_root WHERE member.root_job_id = roots.root)
        + EXISTS (SELECT 1 FROM job AS top WHERE top.job_id = roots.root) AS size
    FROM (SELECT DISTINCT root FROM standing) AS roots
)
SELECT standing.seq, standing.root, tree.size FROM standing JOIN tree ON tree.root = standing.root

-- name: archive
-- Keep what is worth keeping of the jobs in :batch, by seq. A job may have files that its record does not name: of an
-- attempt that was lost, stopped or failed. Only one that completed at its first attempt names all.
INSERT OR REPLACE INTO archive (job_id, archived_at, status, has_files, details)
SELECT job.job_id, :now, job.status,
    job.attempt > 1 OR (job.attempt = 1 AND job.status <> 'completed')
        OR job.log_location IS NOT NULL OR job.artifacts IS NOT NULL OR job.result_artifact IS NOT NULL
        OR job.result_tables IS NOT NULL,
    json_patch('{}', json_object( -- which leaves out what is NULL
        {archived_names_and_columns},
        'payload', 'null',
        'processing_micros', CASE WHEN started_at IS NOT NULL THEN max(0, completed_at - started_at) END))
FROM json_each(:batch) AS each JOIN job ON job.seq = each.value

-- name: retire
-- Remove the jobs in ?1, by seq: those that `archive` has kept.
DELETE FROM job WHERE seq IN (SELECT value FROM json_each(?1)) RETURNING job_id

-- name: archive_over
-- The archived jobs that are over their time there. Index: archive_age.
SELECT job_id FROM archive INDEXED BY archive_age WHERE archived_at < ?1 AND has_files = 0 ORDER BY archived_at LIMIT ?2

-- name: archive_files
-- Archived jobs whose files and rows can go: all but those with a large result, or rows, that a job which reused them
-- still answers with.
-- Indexes: archive_files, job_content.
SELECT a.job_id FROM archive AS a INDEXED BY archive_files
WHERE a.has_files = 1 AND NOT EXISTS (
    SELECT 1 FROM job INDEXED BY job_content
    WHERE job.content_hash = a.details ->> 'content_hash' AND job.job_type = a.details ->> 'job_type'
      AND (job.rows_of = a.job_id OR instr(job.result_artifact, a.job_id) > 0))
LIMIT ?1

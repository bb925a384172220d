-- name: retirable
-- Of the next ?2 jobs by arrival, those that ended before ?3; how far that went, and when the oldest of them arrived.
-- With each the root of its tree, NULL where it stands alone. Index: job_root.
-- Walks the table in the order of its key: no index on the hot path has to be kept for this.
SELECT
    json_group_array(json_array(seq, job_id, job_type, status, completed_at, CASE
        WHEN root_job_id IS NOT NULL THEN root_job_id
        WHEN EXISTS (SELECT 1 FROM job AS member INDEXED BY job_root WHERE member.root_job_id = arrived.job_id)
        THEN job_id END))
        FILTER (WHERE completed_at < ?3),
    max(seq), min(created_at), count(*)
FROM (
    SELECT j.seq, j.job_id, j.job_type, e.status, e.completed_at, j.root_job_id, j.created_at
    FROM job AS j NOT INDEXED LEFT JOIN ended AS e ON e.seq = j.seq
    WHERE j.seq > ?1
    ORDER BY j.seq
    LIMIT ?2
) AS arrived

-- name: tree_members
-- Every job of the tree of ?1, and how each stands; NULL: it has not ended. Index: job_root.
SELECT j.seq, j.job_id, j.job_type, e.status, e.completed_at
FROM job AS j LEFT JOIN ended AS e ON e.seq = j.seq WHERE j.job_id = ?1
UNION ALL
SELECT j.seq, j.job_id, j.job_type, e.status, e.completed_at
FROM job AS j INDEXED BY job_root LEFT JOIN ended AS e ON e.seq = j.seq WHERE j.root_job_id = ?1

-- name: retire_standing
-- Of the jobs in ?1, each [seq, completed_at], those that stand as they were read and whose end has reached all that
-- waited for it. With each its tree: the root, and how many jobs are in it now. Indexes: the keys, job_root; a tree is
-- counted once, however many of its jobs are asked for.
WITH standing AS MATERIALIZED (
    SELECT j.seq AS seq, coalesce(j.root_job_id, j.job_id) AS root
    FROM json_each(?1) AS each CROSS JOIN ended AS e ON e.seq = each.value ->> 0 CROSS JOIN job AS j ON j.seq = e.seq
    LEFT JOIN detail AS d ON d.seq = e.seq
    WHERE e.completed_at = each.value ->> 1
      AND coalesce(d.open_children, 0) = 0 -- or some of its children are still on their way
      AND NOT EXISTS (SELECT 1 FROM release_due WHERE parent_id = j.job_id)
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
SELECT j.job_id, :now, e.status,
    e.attempt > 1 OR (e.attempt = 1 AND e.status <> 'completed')
        OR d.log_location IS NOT NULL OR d.artifacts IS NOT NULL OR e.result_artifact IS NOT NULL
        OR d.result_tables IS NOT NULL,
    json_patch('{}', json_object( -- which leaves out what is NULL
        {archived_names_and_columns},
        'payload', 'null',
        'processing_micros', CASE WHEN e.started_at IS NOT NULL THEN max(0, e.completed_at - e.started_at) END))
FROM json_each(:batch) AS each CROSS JOIN job AS j ON j.seq = each.value
{joined}

-- name: retire_tally
-- How many of the jobs in ?1 ended in each way, by kind. Index: the key.
SELECT j.job_type, j.queue, coalesce(d.priority, j.priority), e.status, count(*)
FROM json_each(?1) AS each CROSS JOIN ended AS e ON e.seq = each.value CROSS JOIN job AS j ON j.seq = e.seq
LEFT JOIN detail AS d ON d.seq = e.seq
GROUP BY 1, 2, 3, 4

-- name: retire
-- Remove the jobs in ?1, by seq: those that `archive` has kept.
DELETE FROM job WHERE seq IN (SELECT value FROM json_each(?1)) RETURNING job_id

-- name: archive_over
-- The archived jobs that are over their time there. Index: archive_age.
SELECT job_id FROM archive INDEXED BY archive_age WHERE archived_at < ?1 AND has_files = 0 ORDER BY archived_at LIMIT ?2

-- name: archive_files
-- Archived jobs whose files and rows can go: all but those with a large result, or rows, that a job which reused them
-- still answers with.
-- Indexes: archive_files, ended_content.
SELECT a.job_id FROM archive AS a INDEXED BY archive_files
WHERE a.has_files = 1 AND NOT EXISTS (
    SELECT 1 FROM ended AS e INDEXED BY ended_content LEFT JOIN detail AS d ON d.seq = e.seq
    WHERE e.content_hash = a.details ->> 'content_hash' AND e.job_type = a.details ->> 'job_type'
      AND (d.rows_of = a.job_id OR instr(e.result_artifact, a.job_id) > 0))
LIMIT ?1

-- name: retire_ended
-- The jobs in ?1 leave the place of those that have ended. Index: the key.
DELETE FROM ended WHERE seq IN (SELECT value FROM json_each(?1))

-- name: retire_details
-- What was not plain about the jobs in ?1 goes. Index: the key.
DELETE FROM detail WHERE seq IN (SELECT value FROM json_each(?1))

-- name: retire_events
-- The history of the jobs in ?1 goes. Index: the key.
DELETE FROM event WHERE seq IN (SELECT value FROM json_each(?1))

-- name: retire_steps
-- The recorded steps of the jobs in ?1 go. Index: the key.
DELETE FROM step WHERE job_id IN (SELECT value FROM json_each(?1))

-- name: retire_output
-- The output of the jobs in ?1 goes. Index: the key.
DELETE FROM output WHERE job_id IN (SELECT value FROM json_each(?1))

-- name: retire_edges
-- What the jobs in ?1 depended on goes. Index: edge_child.
DELETE FROM edge WHERE child_id IN (SELECT value FROM json_each(?1))

-- name: drop_archived
-- Delete the archive rows of the jobs in ?1. Index: the key.
DELETE FROM archive WHERE job_id IN (SELECT value FROM json_each(?1))

-- name: drop_guards
-- Delete the dedup keys of the jobs in ?1. Index: dedup_job.
DELETE FROM dedup WHERE job_id IN (SELECT value FROM json_each(?1))

-- name: cleaned
-- An archived job has no files any more. Index: the key.
UPDATE archive SET has_files = 0 WHERE job_id = ?1

-- name: archived_version
-- The version at which a job was archived. Index: the key.
SELECT details ->> 'version' FROM archive WHERE job_id = ?1

-- name: needed
-- Whether a job has children, or others still wait on it, or something of its end is still to be done. Indexes:
-- job_parent, edge_unmet, the keys.
SELECT EXISTS (SELECT 1 FROM job INDEXED BY job_parent WHERE parent_job_id = ?1)
    OR EXISTS (SELECT 1 FROM edge AS x INDEXED BY edge_unmet CROSS JOIN job AS j ON j.job_id = x.child_id
        CROSS JOIN waiting AS w ON w.seq = j.seq WHERE x.parent_id = ?1 AND x.met = 0)
    OR EXISTS (SELECT 1 FROM release_due WHERE parent_id = ?1)
    OR EXISTS (SELECT 1 FROM unpack_due WHERE job_id = ?1)

-- name: remove_ended
-- The jobs in ?1 are in no place any more. Indexes: the keys.
DELETE FROM ended WHERE seq IN (SELECT j.seq FROM json_each(?1) AS each CROSS JOIN job AS j ON j.job_id = each.value)

-- name: remove_detail
-- See remove_ended.
DELETE FROM detail WHERE seq IN (SELECT j.seq FROM json_each(?1) AS each CROSS JOIN job AS j ON j.job_id = each.value)

-- name: remove_events
-- See remove_ended.
DELETE FROM event WHERE seq IN (SELECT j.seq FROM json_each(?1) AS each CROSS JOIN job AS j ON j.job_id = each.value)

-- name: remove_kin
-- The parent of ?1 has one child less. Indexes: the unique one on job_id, the key.
UPDATE detail SET children = children - 1
WHERE seq = (SELECT p.seq FROM job AS j CROSS JOIN job AS p ON p.job_id = j.parent_job_id WHERE j.job_id = ?1)

-- name: remove_staged
-- Parts that attempts of the jobs in ?1 staged. Index: the key.
DELETE FROM staged WHERE job_id IN (SELECT value FROM json_each(?1))

-- name: remove_job
-- What was submitted of the jobs in ?1. Index: the unique one on job_id.
DELETE FROM job WHERE job_id IN (SELECT value FROM json_each(?1))

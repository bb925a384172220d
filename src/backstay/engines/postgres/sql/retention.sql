-- name: retirable
-- Of the next $2 jobs by arrival, those that ended before $3; how far that went, and when the oldest of them arrived.
-- With each the root of its tree, NULL where it stands alone. Indexes: job_pkey, job_arrival, ended_pkey, job_root.
SELECT json_agg(json_build_array(step.job_id, step.job_id, step.job_type, e.status, e.completed_at, CASE
            WHEN root_job_id IS NOT NULL THEN root_job_id
            WHEN EXISTS (SELECT 1 FROM backstay.job AS member WHERE member.root_job_id = step.job_id) THEN step.job_id END))
        FILTER (WHERE e.completed_at < $3)::text,
    max(place::text), min(created_at), count(*)
FROM (
    (SELECT job_id, job_type, root_job_id, created_at, job_id AS place FROM backstay.job
     WHERE job_id > $1::uuid AND arrival IS NULL ORDER BY job_id LIMIT $2)
    UNION ALL
    (SELECT job_id, job_type, root_job_id, created_at, arrival FROM backstay.job
     WHERE arrival > $1::uuid ORDER BY arrival LIMIT $2)
    ORDER BY place LIMIT $2
) AS step
LEFT JOIN LATERAL (SELECT status, completed_at FROM backstay.ended WHERE job_id = step.job_id OFFSET 0) AS e ON true

-- name: tree_members
-- Every job of the tree of $1, and how each stands; NULL for those that have not ended. Indexes: job_pkey, job_root.
SELECT j.job_id::text, j.job_id::text, j.job_type, coalesce(e.status, 'active'), e.completed_at
FROM (
    SELECT job_id, job_type FROM backstay.job WHERE job_id = $1::uuid
    UNION ALL
    SELECT job_id, job_type FROM backstay.job WHERE root_job_id = $1::uuid
) AS j
LEFT JOIN LATERAL (SELECT status, completed_at FROM backstay.ended WHERE job_id = j.job_id OFFSET 0) AS e ON true

-- name: archive
-- Move jobs to the archive: this transaction holds them and has seen that they can go. A job may have files that its
-- record does not name: of an attempt that was lost, stopped or failed. Only one that completed at its first attempt
-- names all.
WITH gone AS MATERIALIZED (
    SELECT * FROM backstay.standing WHERE job_id = ANY ($1::uuid[])
), kept AS (
    INSERT INTO backstay.archive (job_id, archived_at, status, has_files, details)
    SELECT job_id, $2, status,
        attempt > 1 OR (attempt = 1 AND status <> 'completed')
            OR log_location IS NOT NULL OR artifacts IS NOT NULL OR result_artifact IS NOT NULL
            OR result_tables IS NOT NULL,
        jsonb_strip_nulls((SELECT to_jsonb(record) FROM (
            SELECT {archived_columns}, 'null' AS payload,
                CASE WHEN started_at IS NOT NULL THEN greatest(0, completed_at - started_at) END AS processing_micros
        ) AS record))::text
    FROM gone
    ON CONFLICT (job_id) DO UPDATE SET archived_at = excluded.archived_at, status = excluded.status,
        has_files = excluded.has_files, details = excluded.details
), steps AS (
    DELETE FROM backstay.step WHERE job_id IN (SELECT job_id FROM gone)
), output AS (
    DELETE FROM backstay.output WHERE job_id IN (SELECT job_id FROM gone)
), edges AS (
    DELETE FROM backstay.edge WHERE child_id IN (SELECT job_id FROM gone)
)
SELECT count(*) FROM gone

-- name: drop_ended
-- Delete jobs that ended, with their detail and history.
SELECT backstay.drop_ended($1::uuid[])

-- name: retire_lock
-- Lock jobs until the end of the transaction, in the order of their ids: a retry happens before or after.
SELECT 1 FROM backstay.job WHERE job_id = ANY ($1::uuid[]) ORDER BY job_id FOR UPDATE

-- name: retire_standing
-- Of jobs by id and completed_at, those that stand as they were read and whose end has reached all that waited for it.
-- With each its tree: the root, and how many jobs are in it now. Indexes: ended_pkey, job_pkey, job_root; a tree is
-- counted once, however many of its jobs are asked for.
WITH standing AS MATERIALIZED (
    SELECT j.job_id, coalesce(j.root_job_id, j.job_id) AS root
    FROM unnest($1::uuid[], $2::bigint[]) AS b (job_id, ended_at)
    CROSS JOIN LATERAL (
        SELECT j.job_id, j.root_job_id FROM backstay.job AS j WHERE j.job_id = b.job_id OFFSET 0) AS j
    CROSS JOIN LATERAL (
        SELECT completed_at FROM backstay.ended WHERE job_id = b.job_id OFFSET 0) AS e
    LEFT JOIN LATERAL (
        SELECT open_children FROM backstay.detail WHERE job_id = b.job_id OFFSET 0) AS d ON true
    WHERE e.completed_at = b.ended_at
      AND coalesce(d.open_children, 0) = 0 -- or some of its children are still on their way
      AND NOT EXISTS (SELECT 1 FROM backstay.release_due WHERE parent_id = j.job_id)
), tree AS MATERIALIZED (
    SELECT root, (SELECT count(*) FROM backstay.job AS member WHERE member.root_job_id = roots.root)
        + (SELECT count(*) FROM backstay.job AS top WHERE top.job_id = roots.root) AS size
    FROM (SELECT DISTINCT root FROM standing) AS roots
)
SELECT standing.job_id::text, standing.root::text, tree.size FROM standing JOIN tree ON tree.root = standing.root

-- name: archive_drop
-- Rows of the archive that are over their time there, with the guards that stand on them. Index: archive_age.
WITH over AS MATERIALIZED (
    SELECT job_id FROM backstay.archive WHERE archived_at < $1 AND NOT has_files ORDER BY archived_at LIMIT $2
    FOR UPDATE SKIP LOCKED
), guards AS (
    DELETE FROM backstay.dedup WHERE job_id IN (SELECT job_id FROM over)
), gone AS (
    DELETE FROM backstay.archive WHERE job_id IN (SELECT job_id FROM over) RETURNING 1
)
SELECT count(*) FROM gone

-- name: with_files
-- Archived jobs whose files and rows can go: all but those with a large result, or rows, that a job which reused them
-- still answers with.
-- Indexes: archive_files, ended_content.
SELECT a.job_id::text FROM backstay.archive AS a
WHERE a.has_files AND NOT EXISTS (
    SELECT 1 FROM backstay.ended AS e LEFT JOIN backstay.detail AS d ON d.job_id = e.job_id
    WHERE e.content_hash = a.details::json ->> 'content_hash' AND e.job_type = a.details::json ->> 'job_type'
      AND (d.rows_of = a.job_id OR strpos(e.result_artifact, a.job_id::text) > 0))
LIMIT $1

-- name: cleaned
-- Their files are gone.
UPDATE backstay.archive SET has_files = false WHERE job_id = ANY ($1::uuid[])

-- name: remove
-- Delete a job that has ended and is locked, or its archive row: see `remove_job`.
SELECT backstay.remove_job($1::uuid, $2::integer)

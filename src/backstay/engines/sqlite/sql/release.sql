-- name: unmet_edges
-- Jobs that still wait on :parent. Index: edge_unmet.
SELECT e.child_id, c.status, c.awaits, c.attempt, c.unmet_dependencies, c.trigger_rule, c.on_dependency_failure,
    c.scheduled_for, c.joins, c.parent_job_id, c.job_type, c.queue, c.priority
FROM edge AS e INDEXED BY edge_unmet JOIN job AS c ON c.job_id = e.child_id
WHERE e.parent_id = :parent AND e.met = 0
LIMIT :limit

-- name: meet_edge
-- Consume an edge, once.
UPDATE edge SET met = 1 WHERE parent_id = :parent AND child_id = :child AND met = 0

-- name: release_child
-- Move a waiting job on, or only count down what it waits on (:target is 'waiting' then, and no event is written). One
-- that waits for its children is not moved by what it once depended on.
UPDATE job
SET unmet_dependencies = :unmet,
    status = :target,
    version = version + (:target <> 'waiting'),
    updated_at = :now,
    completed_at = CASE WHEN :target IN ('completed', 'failed', 'cancelled') THEN :now END,
    stage = CASE :target WHEN 'failed' THEN 'error' WHEN 'completed' THEN 'complete' ELSE stage END,
    progress = CASE :target WHEN 'completed' THEN 1 ELSE progress END,
    last_error = CASE :target WHEN 'failed' THEN :reason ELSE last_error END,
    reused_from = CASE WHEN joins IS NULL THEN reused_from WHEN :target = 'completed' THEN joins END,
    joins = CASE WHEN :target = 'waiting' THEN joins END,
    result = CASE :target WHEN 'completed' THEN (SELECT d.result FROM job AS d WHERE d.job_id = job.joins) END,
    result_artifact = CASE :target WHEN 'completed'
        THEN (SELECT d.result_artifact FROM job AS d WHERE d.job_id = job.joins) END,
    metrics = CASE :target WHEN 'completed'
        THEN (SELECT d.metrics FROM job AS d WHERE d.job_id = job.joins) ELSE metrics END,
    (result_tables, rows_of, rows_attempt) = (
        SELECT d.result_tables, CASE WHEN d.result_tables IS NOT NULL THEN coalesce(d.rows_of, d.job_id) END,
            CASE WHEN d.result_tables IS NOT NULL THEN coalesce(d.rows_attempt, d.attempt) END
        FROM job AS d WHERE d.job_id = job.joins AND :target = 'completed'),
    history = CASE WHEN :target = 'waiting' THEN history ELSE history || char(10) || '[' || (version + 1) || :event END
WHERE job_id = :child AND +status = 'waiting' AND awaits IS NULL

-- name: count_children
-- What children add to the numbers of :parent. No version and no event: as with a lease, the state does not change.
-- Its answer tells how it stands, for those that wait for the last of them. Index: the unique one on job_id.
UPDATE job
SET children = coalesce(children, 0) + :children,
    open_children = coalesce(open_children, 0) + :open,
    failed_children = coalesce(failed_children, 0) + :failed,
    cancelled_children = coalesce(cancelled_children, 0) + :cancelled
WHERE job_id = :parent
RETURNING awaits, children, open_children, failed_children, cancelled_children, attempt, parent_job_id, job_type, queue,
    priority

-- name: release_parent
-- Resume a job that has waited for its children, or end it, as :target says. Its waiting time begins now.
UPDATE job
SET status = :target, version = version + 1, updated_at = :now, awaits = NULL,
    scheduled_for = CASE :target WHEN 'pending' THEN :now ELSE scheduled_for END,
    completed_at = CASE WHEN :target IN ('failed', 'cancelled') THEN :now END,
    stage = CASE :target WHEN 'failed' THEN 'error' ELSE stage END,
    last_error = CASE :target WHEN 'failed' THEN :reason ELSE last_error END,
    history = CASE version % 64 WHEN 63 THEN trim_history(history) ELSE history END
        || char(10) || '[' || (version + 1) || :event
WHERE job_id = :parent AND +status = 'waiting' AND awaits IS NOT NULL

-- name: key_running
-- How many jobs of a concurrency key run. Index: job_key.
SELECT count(*) FROM job INDEXED BY job_key WHERE concurrency_key = ?1 AND status = 'processing'

-- name: key_in_sight
-- How many pending jobs of a concurrency key, queue, type and version are in sight and come no later in claim order than
-- the one of priority ?5, due time ?6 and id ?7, up to ?8. Index: job_key.
SELECT count(*) FROM (
    SELECT priority, scheduled_for, job_id FROM job INDEXED BY job_key
    WHERE concurrency_key = ?1 AND status = 'pending' AND queue = ?2 AND job_type = ?3 AND payload_version = ?4
      AND parked = 0
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?8)
WHERE (-priority, scheduled_for, job_id) <= (-?5, ?6, ?7)

-- name: keys_of
-- The concurrency keys of the jobs in ?1.
SELECT DISTINCT concurrency_key, max(concurrency_limit)
FROM job
WHERE job_id IN (SELECT value FROM json_each(?1)) AND concurrency_key IS NOT NULL
GROUP BY concurrency_key

-- name: parked_keys
-- Keys that have parked jobs, with their limit: one seek of job_parked for each key.
WITH RECURSIVE each (key) AS (
    SELECT * FROM (
        SELECT concurrency_key FROM job INDEXED BY job_parked
        WHERE parked = 1 AND rate_parked = 0 AND concurrency_key IS NOT NULL
        ORDER BY concurrency_key LIMIT 1)
    UNION ALL
    SELECT (
        SELECT concurrency_key FROM job INDEXED BY job_parked
        WHERE parked = 1 AND rate_parked = 0 AND concurrency_key > each.key
        ORDER BY concurrency_key LIMIT 1)
    FROM each WHERE each.key IS NOT NULL
    LIMIT ?1
)
SELECT key, (
    SELECT concurrency_limit FROM job INDEXED BY job_parked
    WHERE parked = 1 AND rate_parked = 0 AND concurrency_key = each.key LIMIT 1)
FROM each WHERE key IS NOT NULL

-- name: park
-- Park pending jobs whose key is full; ?2: 1 if it is their rate key.
UPDATE job SET parked = 1, rate_parked = ?2 WHERE seq IN (SELECT value FROM json_each(?1)) AND +status = 'pending'

-- name: parked_of
-- The queues, types and versions in which a key has parked jobs: some seeks of job_parked for each, however many jobs wait.
WITH RECURSIVE each (queue, job_type, version) AS (
    SELECT * FROM (
        SELECT queue, job_type, payload_version FROM job INDEXED BY job_parked
        WHERE concurrency_key = ?1 AND parked = 1 AND rate_parked = 0
        ORDER BY queue, job_type, payload_version LIMIT 1)
    UNION ALL
    SELECT next.queue, next.job_type, next.payload_version FROM each JOIN job AS next ON next.seq = coalesce(
        (SELECT seq FROM job INDEXED BY job_parked
         WHERE concurrency_key = ?1 AND parked = 1 AND rate_parked = 0
           AND queue = each.queue AND job_type = each.job_type AND payload_version > each.version
         ORDER BY payload_version LIMIT 1),
        (SELECT seq FROM job INDEXED BY job_parked
         WHERE concurrency_key = ?1 AND parked = 1 AND rate_parked = 0
           AND queue = each.queue AND job_type > each.job_type
         ORDER BY job_type, payload_version LIMIT 1),
        (SELECT seq FROM job INDEXED BY job_parked
         WHERE concurrency_key = ?1 AND parked = 1 AND rate_parked = 0 AND queue > each.queue
         ORDER BY queue, job_type, payload_version LIMIT 1))
)
SELECT queue, job_type, version FROM each

-- name: unpark
-- Unpark jobs of a key, queue, type and version, in claim order: each that is among the first ?5 of the parked and
-- claimable ones. Claimable jobs that come later do not count. Indexes: job_parked, job_key.
WITH next AS MATERIALIZED (
    SELECT seq, parked, row_number() OVER (ORDER BY priority DESC, scheduled_for, job_id) AS place
    FROM (
        SELECT * FROM (
            SELECT seq, parked, priority, scheduled_for, job_id FROM job INDEXED BY job_parked
            WHERE concurrency_key = ?1 AND queue = ?2 AND job_type = ?3 AND payload_version = ?4
              AND parked = 1 AND rate_parked = 0
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT ?5)
        UNION ALL
        SELECT * FROM (
            SELECT seq, parked, priority, scheduled_for, job_id FROM job INDEXED BY job_key
            WHERE concurrency_key = ?1 AND status = 'pending' AND queue = ?2 AND job_type = ?3
              AND payload_version = ?4 AND parked = 0
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT ?5))
)
UPDATE job SET parked = 0
WHERE seq IN (SELECT seq FROM next WHERE parked = 1 AND place <= ?5)

-- name: anyone_waits
-- Whether any edge is unmet, and whether any job has a concurrency key. Indexes: edge_unmet, job_key.
SELECT
    EXISTS (SELECT 1 FROM edge INDEXED BY edge_unmet WHERE met = 0),
    EXISTS (SELECT 1 FROM job INDEXED BY job_key WHERE concurrency_key IS NOT NULL)

-- name: status
-- How a job stands, in the jobs or in the archive.
SELECT coalesce((SELECT status FROM job WHERE job_id = ?1), (SELECT status FROM archive WHERE job_id = ?1))

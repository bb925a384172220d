-- name: status
-- How a job stands, in the jobs or in the archive.
SELECT backstay.status_of($1::uuid)

-- name: unmet_edges
-- Jobs that still wait on $1, locked in the order of their ids. Index: edge_unmet.
SELECT c.job_id::text, c.status, c.awaits, c.unmet_dependencies, coalesce(c.trigger_rule, 'all_success'),
    c.on_dependency_failure, c.scheduled_for, c.joins::text, c.parent_job_id::text, c.job_type, c.queue, c.priority
FROM backstay.edge AS e JOIN backstay.job AS c ON c.job_id = e.child_id
WHERE e.parent_id = $1::uuid AND NOT e.met
ORDER BY c.job_id
LIMIT $2
FOR UPDATE OF c

-- name: add_release_due
-- Mark a job whose dependents one transaction could not all release.
INSERT INTO backstay.release_due (parent_id) VALUES ($1::uuid) ON CONFLICT DO NOTHING

-- name: meet_edges
-- Consume edges, each once.
UPDATE backstay.edge SET met = true WHERE parent_id = $1::uuid AND child_id = ANY ($2::uuid[]) AND NOT met

-- name: took
-- How long a job took.
SELECT backstay.took($1::uuid)

-- name: release_children
-- Move waiting jobs on, or only count down what each waits on (its target is 'waiting' then, and no event is written).
-- One that waits for its children is not moved by what it once depended on.
UPDATE backstay.job AS j
SET unmet_dependencies = n.unmet,
    status = n.target,
    version = j.version + (n.target <> 'waiting')::integer,
    updated_at = $5,
    completed_at = CASE WHEN n.target IN ('completed', 'failed', 'cancelled') THEN $5::bigint END,
    stage = CASE n.target WHEN 'failed' THEN 'error' WHEN 'completed' THEN 'complete' ELSE j.stage END,
    progress = CASE n.target WHEN 'completed' THEN 1 ELSE j.progress END,
    last_error = CASE n.target WHEN 'failed' THEN 'DependencyFailed: ' || $7::text ELSE j.last_error END,
    reused_from = CASE WHEN j.joins IS NULL THEN j.reused_from WHEN n.target = 'completed' THEN j.joins END,
    joins = CASE WHEN n.target = 'waiting' THEN j.joins END,
    result = CASE n.target WHEN 'completed' THEN d.result END,
    result_artifact = CASE n.target WHEN 'completed' THEN d.result_artifact END,
    metrics = CASE n.target WHEN 'completed' THEN d.metrics ELSE j.metrics END,
    result_tables = CASE n.target WHEN 'completed' THEN d.result_tables ELSE j.result_tables END,
    rows_of = CASE WHEN n.target = 'completed' AND d.result_tables IS NOT NULL THEN coalesce(d.rows_of, d.job_id) END,
    rows_attempt = CASE WHEN n.target = 'completed' AND d.result_tables IS NOT NULL
        THEN coalesce(d.rows_attempt, d.attempt) END,
    history = CASE WHEN n.target = 'waiting' THEN j.history ELSE backstay.trimmed(j.history, j.version) || E'\n'
        || backstay.event(j.version + 1, $5, n.event, 'waiting', n.target, j.attempt, NULL,
            CASE n.event WHEN 'reuse' THEN $8::text ELSE $7::text END) END
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[]) AS n (job_id, unmet, target, event)
LEFT JOIN backstay.job AS d ON d.job_id = $6::uuid
WHERE j.job_id = n.job_id AND (j.status || '') = 'waiting' AND j.awaits IS NULL

-- name: lock_parents
-- Hold the parents of children that end, in the order of their ids, before any child is held.
SELECT 1 FROM backstay.job WHERE job_id = ANY ($1::uuid[]) ORDER BY job_id FOR NO KEY UPDATE

-- name: count_children
-- What children add to their parents' numbers, a row for each parent. No version and no event: as with a lease, the
-- state does not change. The answer tells how each stands, for those that wait for the last of them.
UPDATE backstay.job AS p
SET children = coalesce(p.children, 0) + n.children,
    open_children = coalesce(p.open_children, 0) + n.still_open,
    failed_children = coalesce(p.failed_children, 0) + n.failed,
    cancelled_children = coalesce(p.cancelled_children, 0) + n.cancelled
FROM unnest($1::uuid[], $2::integer[], $3::integer[], $4::integer[], $5::integer[])
    AS n (job_id, children, still_open, failed, cancelled)
WHERE p.job_id = n.job_id
RETURNING p.job_id::text, p.awaits, p.children, p.open_children, p.failed_children, p.cancelled_children,
    p.parent_job_id::text, p.job_type, p.queue, p.priority

-- name: release_parents
-- Resume jobs that have waited for their children, or end them, as each target says. Their waiting time begins now.
UPDATE backstay.job AS j
SET status = n.target, version = j.version + 1, updated_at = $4, awaits = NULL,
    scheduled_for = CASE n.target WHEN 'pending' THEN $4::bigint ELSE j.scheduled_for END,
    completed_at = CASE WHEN n.target IN ('failed', 'cancelled') THEN $4::bigint END,
    stage = CASE n.target WHEN 'failed' THEN 'error' ELSE j.stage END,
    last_error = CASE n.target WHEN 'failed' THEN 'ChildFailed: ' || n.reason ELSE j.last_error END,
    history = backstay.trimmed(j.history, j.version) || E'\n'
        || backstay.event(j.version + 1, $4, 'release', 'waiting', n.target, j.attempt, NULL, n.reason)
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n (job_id, target, reason)
WHERE j.job_id = n.job_id AND (j.status || '') = 'waiting' AND j.awaits IS NOT NULL

-- name: key_running
-- How many jobs of a concurrency key run. Index: job_key.
SELECT count(*) FROM backstay.job WHERE concurrency_key = $1 AND status = 'processing'

-- name: parked_of
-- The queues, types and versions in which a concurrency key has parked jobs: one seek of job_parked for each, however
-- many jobs wait.
WITH RECURSIVE each (queue, job_type, version) AS (
    (SELECT queue, job_type, payload_version FROM backstay.job
     WHERE concurrency_key = $1 AND parked AND NOT rate_parked
     ORDER BY queue, job_type, payload_version LIMIT 1)
    UNION ALL
    SELECT next.queue, next.job_type, next.payload_version FROM each CROSS JOIN LATERAL (
        SELECT queue, job_type, payload_version FROM backstay.job
        WHERE concurrency_key = $1 AND parked AND NOT rate_parked
          AND (queue, job_type, payload_version) > (each.queue, each.job_type, each.version)
        ORDER BY queue, job_type, payload_version LIMIT 1) AS next
)
SELECT queue, job_type, version FROM each

-- name: unpark
-- Unpark jobs of a key, queue, type and version, in claim order: each that is among the first $5 of the parked and
-- claimable ones. Claimable jobs that come later do not count. Indexes: job_parked, job_key.
WITH next AS MATERIALIZED (
    SELECT seq, priority, scheduled_for, job_id FROM backstay.job
    WHERE concurrency_key = $1 AND queue = $2 AND job_type = $3 AND payload_version = $4 AND parked AND NOT rate_parked
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT $5
    FOR UPDATE SKIP LOCKED
), in_sight AS MATERIALIZED (
    SELECT priority, scheduled_for, job_id FROM backstay.job
    WHERE concurrency_key = $1 AND status = 'pending' AND queue = $2 AND job_type = $3 AND payload_version = $4
      AND NOT parked
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT $5
), placed AS (
    SELECT seq, row_number() OVER (ORDER BY priority DESC, scheduled_for, job_id) AS place FROM (
        SELECT seq, priority, scheduled_for, job_id FROM next
        UNION ALL
        SELECT NULL, priority, scheduled_for, job_id FROM in_sight) AS together
)
UPDATE backstay.job AS j SET parked = false
WHERE j.seq = ANY (ARRAY(SELECT seq FROM placed WHERE seq IS NOT NULL AND place <= $5))

-- name: take_release_due
-- Take such marks, to continue from them.
DELETE FROM backstay.release_due WHERE parent_id IN (
    SELECT parent_id FROM backstay.release_due ORDER BY parent_id LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING parent_id::text

-- name: take_join_due
-- Take marks of parents whose last child was ended by SQL.
DELETE FROM backstay.join_due WHERE job_id IN (
    SELECT job_id FROM backstay.join_due ORDER BY job_id LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING job_id::text

-- name: parked_keys
-- Concurrency keys that have parked jobs, with their limit: one seek of job_parked for each key.
WITH RECURSIVE each (key, key_limit) AS (
    (SELECT concurrency_key, concurrency_limit FROM backstay.job
     WHERE parked AND NOT rate_parked AND concurrency_key IS NOT NULL
     ORDER BY concurrency_key LIMIT 1)
    UNION ALL
    SELECT next.concurrency_key, next.concurrency_limit FROM each CROSS JOIN LATERAL (
        SELECT concurrency_key, concurrency_limit FROM backstay.job
        WHERE parked AND NOT rate_parked AND concurrency_key > each.key
        ORDER BY concurrency_key LIMIT 1) AS next
)
SELECT key, key_limit FROM each LIMIT $1

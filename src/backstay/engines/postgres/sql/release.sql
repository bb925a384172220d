-- name: status
-- How a job stands, in the jobs or in the archive.
SELECT backstay.status_of($1::uuid)

-- name: unmet_edges
-- Jobs that still wait on $1, their places locked in the order of ids: whether each still waits: some have started
-- early, or were cancelled. Index: edge_unmet.
WITH children AS MATERIALIZED (
    SELECT child_id FROM backstay.edge WHERE parent_id = $1::uuid AND NOT met ORDER BY child_id LIMIT $2
), locked AS MATERIALIZED (
    SELECT w.job_id FROM children AS c CROSS JOIN LATERAL (
        SELECT job_id, awaits FROM backstay.waiting WHERE job_id = c.child_id FOR UPDATE) AS w
    WHERE w.awaits IS NULL
)
SELECT c.child_id::text, l.job_id IS NOT NULL FROM children AS c LEFT JOIN locked AS l ON l.job_id = c.child_id

-- name: add_release_due
-- Mark a job whose dependents one transaction could not all release.
INSERT INTO backstay.release_due (parent_id) VALUES ($1::uuid) ON CONFLICT DO NOTHING

-- name: meet_edges
-- Consume edges, each once.
UPDATE backstay.edge SET met = true WHERE parent_id = $1::uuid AND child_id = ANY ($2::uuid[]) AND NOT met

-- name: count_down
-- Jobs wait for fewer others.
UPDATE backstay.waiting AS w SET unmet = n.unmet FROM unnest($1::uuid[], $2::integer[]) AS n (job_id, unmet)
WHERE w.job_id = n.job_id

-- name: donated
-- What a job hands on that is reused, and how long it took.
SELECT e.result, e.result_artifact, d.metrics, d.result_tables,
    CASE WHEN d.result_tables IS NOT NULL THEN coalesce(d.rows_of, e.job_id)::text END,
    CASE WHEN d.result_tables IS NOT NULL THEN coalesce(d.rows_attempt, e.attempt) END, backstay.took(e.job_id)
FROM backstay.ended AS e LEFT JOIN backstay.detail AS d ON d.job_id = e.job_id
WHERE e.job_id = $1::uuid

-- name: lock_parents
-- Hold the parents of children that end, in the order of their ids, before any child is held.
SELECT 1 FROM backstay.job WHERE job_id = ANY ($1::uuid[]) ORDER BY job_id FOR NO KEY UPDATE

-- name: count_children
-- What children add to their parents' numbers. No version and no event: as with a lease, the state does not change.
SELECT backstay.count_children($1::uuid[], $2::integer[], $3::integer[], $4::integer[], $5::integer[])

-- name: broods
-- How many children jobs have that wait for them, once none of those is open; their places are locked. Index: waiting_pkey.
SELECT w.job_id::text, w.awaits, coalesce(d.children, 0), coalesce(d.open_children, 0), coalesce(d.failed_children, 0),
    coalesce(d.cancelled_children, 0)
FROM (SELECT job_id, awaits FROM backstay.waiting
    WHERE job_id = ANY ($1::uuid[]) AND awaits IS NOT NULL ORDER BY job_id FOR UPDATE) AS w
LEFT JOIN LATERAL (SELECT * FROM backstay.detail WHERE job_id = w.job_id OFFSET 0) AS d ON true
WHERE coalesce(d.open_children, 0) <= 0

-- name: keys_running
-- How many jobs of each of these concurrency keys run. Index: running_key.
SELECT each.key, (SELECT count(*) FROM backstay.running WHERE concurrency_key = each.key COLLATE "C")
FROM unnest($1::text[]) AS each (key)

-- name: unpark
-- Let in jobs of a concurrency key, as many as could run. Indexes: running_key, ready_key.
SELECT backstay.unpark_key($1, $2)

-- name: take_release_due
-- Take such marks, to continue from them, and hold their jobs first: one that is run again at the same time does so
-- before, or after the part that is released now.
WITH held AS MATERIALIZED (
    SELECT j.job_id FROM backstay.release_due AS d
    CROSS JOIN LATERAL (SELECT job_id FROM backstay.job WHERE job_id = d.parent_id FOR NO KEY UPDATE SKIP LOCKED) AS j
    LIMIT $1
)
DELETE FROM backstay.release_due WHERE parent_id = ANY (ARRAY(SELECT job_id FROM held)) RETURNING parent_id::text, dropping

-- name: drop_released
-- Remove a job that SQL has dropped, unless some that joined it are still to be released.
SELECT backstay.drop_ended_jobs(ARRAY[$1::uuid])

-- name: take_join_due
-- Take marks of parents whose last child was ended by SQL.
DELETE FROM backstay.join_due WHERE job_id IN (
    SELECT job_id FROM backstay.join_due ORDER BY job_id LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING job_id::text

-- name: parked_keys
-- Concurrency keys that have parked jobs, with their limit: one seek of ready_parked for each key.
WITH RECURSIVE each (key, key_limit) AS (
    (SELECT concurrency_key, concurrency_limit FROM backstay.ready WHERE parked = 1 ORDER BY concurrency_key LIMIT 1)
    UNION ALL
    SELECT next.concurrency_key, next.concurrency_limit FROM each CROSS JOIN LATERAL (
        SELECT concurrency_key, concurrency_limit FROM backstay.ready
        WHERE parked = 1 AND concurrency_key > each.key
        ORDER BY concurrency_key LIMIT 1) AS next
)
SELECT key, key_limit FROM each LIMIT $1

-- name: unmet_edges
-- Where the jobs stand that still wait on :parent. Index: edge_unmet.
SELECT {standing_columns}
FROM edge AS x INDEXED BY edge_unmet CROSS JOIN job AS j ON j.job_id = x.child_id
{joined}
WHERE x.parent_id = :parent AND x.met = 0
LIMIT :limit

-- name: meet_edge
-- Consume an edge, once.
UPDATE edge SET met = 1 WHERE parent_id = :parent AND child_id = :child AND met = 0

-- name: count_down
-- A waiting job waits for one job less.
UPDATE waiting SET unmet = ?2 WHERE seq = ?1

-- name: count_children
-- What children add to the numbers of :parent. No version and no event: as with a lease, the state does not change.
-- Its answer tells how many there are. Index: the unique one on job_id.
INSERT INTO detail (seq, children, open_children, failed_children, cancelled_children)
SELECT seq, max(0, :children), max(0, :open), max(0, :failed), max(0, :cancelled) FROM job WHERE job_id = :parent
ON CONFLICT (seq) DO UPDATE SET
    children = coalesce(children, 0) + :children,
    open_children = coalesce(open_children, 0) + :open,
    failed_children = coalesce(failed_children, 0) + :failed,
    cancelled_children = coalesce(cancelled_children, 0) + :cancelled
RETURNING seq, children, open_children, failed_children, cancelled_children

-- name: key_running
-- How many jobs of a concurrency key run. Index: running_key.
SELECT count(*) FROM running INDEXED BY running_key WHERE concurrency_key = ?1

-- name: type_running
-- How many jobs of a type run. Reads all of `running`, which is short. Index: the key of `job`.
SELECT count(*) FROM running AS r CROSS JOIN job AS j ON j.seq = r.seq WHERE j.job_type = ?1

-- name: parked_limit
-- What a job that is parked by a key was submitted with. Index: ready_parked.
SELECT concurrency_limit FROM ready INDEXED BY ready_parked WHERE parked = 1 AND concurrency_key = ?1 LIMIT 1

-- name: key_in_sight
-- How many pending jobs of a concurrency key, queue, type and version are in sight and come no later in claim order than
-- the one of priority ?5, due time ?6 and id ?7, up to ?8. Index: ready_key.
SELECT count(*) FROM (
    SELECT priority, scheduled_for, job_id FROM ready INDEXED BY ready_key
    WHERE concurrency_key = ?1 AND queue = ?2 AND job_type = ?3 AND payload_version = ?4 AND parked = 0
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?8)
WHERE (-priority, scheduled_for, job_id) <= (-?5, ?6, ?7)

-- name: parked_keys
-- Keys that have parked jobs, with their limit: one seek of ready_parked for each key.
WITH RECURSIVE each (key) AS (
    SELECT * FROM (
        SELECT concurrency_key FROM ready INDEXED BY ready_parked WHERE parked = 1 ORDER BY concurrency_key LIMIT 1)
    UNION ALL
    SELECT (
        SELECT concurrency_key FROM ready INDEXED BY ready_parked
        WHERE parked = 1 AND concurrency_key > each.key
        ORDER BY concurrency_key LIMIT 1)
    FROM each WHERE each.key IS NOT NULL
    LIMIT ?1
)
SELECT key, (
    SELECT concurrency_limit FROM ready INDEXED BY ready_parked WHERE parked = 1 AND concurrency_key = each.key LIMIT 1)
FROM each WHERE key IS NOT NULL

-- name: park
-- Park the jobs in ?1, each [queue, type, fair, priority, due, id], whose key is full (?2: 1) or whose rate is used up
-- (2). Index: the key.
UPDATE ready SET parked = ?2
FROM (
    SELECT value ->> 0 AS queue, value ->> 1 AS job_type, value ->> 2 AS fair, value ->> 3 AS priority,
        value ->> 4 AS scheduled_for, value ->> 5 AS job_id
    FROM json_each(?1)
) AS s
WHERE ready.queue = s.queue AND ready.job_type = s.job_type AND ready.fair = s.fair AND ready.parked = 0
  AND ready.priority = s.priority AND ready.scheduled_for = s.scheduled_for AND ready.job_id = s.job_id

-- name: parked_of
-- The queues, types and versions in which a key has parked jobs: some seeks of ready_parked for each, however many wait.
WITH RECURSIVE each (lane) AS (
    SELECT * FROM (
        SELECT json_array(queue, job_type, payload_version) FROM ready INDEXED BY ready_parked
        WHERE concurrency_key = ?1 AND parked = 1
        ORDER BY queue, job_type, payload_version LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT json_array(queue, job_type, payload_version) FROM ready INDEXED BY ready_parked
         WHERE concurrency_key = ?1 AND parked = 1
           AND queue = lane ->> 0 AND job_type = lane ->> 1 AND payload_version > lane ->> 2
         ORDER BY payload_version LIMIT 1),
        (SELECT json_array(queue, job_type, payload_version) FROM ready INDEXED BY ready_parked
         WHERE concurrency_key = ?1 AND parked = 1 AND queue = lane ->> 0 AND job_type > lane ->> 1
         ORDER BY job_type, payload_version LIMIT 1),
        (SELECT json_array(queue, job_type, payload_version) FROM ready INDEXED BY ready_parked
         WHERE concurrency_key = ?1 AND parked = 1 AND queue > lane ->> 0
         ORDER BY queue, job_type, payload_version LIMIT 1))
    FROM each WHERE lane IS NOT NULL
)
SELECT lane ->> 0, lane ->> 1, lane ->> 2 FROM each WHERE lane IS NOT NULL

-- name: unpark
-- Which jobs of a key, queue, type and version to unpark, in claim order: each that is among the first ?5 of the parked
-- and claimable ones; as one JSON value for `bring_back`. Claimable jobs that come later do not count.
-- Indexes: ready_parked, ready_key.
SELECT json_group_array(json_array(queue, job_type, fair, priority, scheduled_for, job_id)) FILTER (WHERE parked)
FROM (
    SELECT * FROM (
        SELECT * FROM (
            SELECT queue, job_type, fair, parked, priority, scheduled_for, job_id FROM ready INDEXED BY ready_parked
            WHERE concurrency_key = ?1 AND queue = ?2 AND job_type = ?3 AND payload_version = ?4 AND parked = 1
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT ?5)
        UNION ALL
        SELECT * FROM (
            SELECT queue, job_type, fair, parked, priority, scheduled_for, job_id FROM ready INDEXED BY ready_key
            WHERE concurrency_key = ?1 AND queue = ?2 AND job_type = ?3 AND payload_version = ?4 AND parked = 0
            ORDER BY priority DESC, scheduled_for, job_id
            LIMIT ?5))
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?5)

-- name: bring_back
-- Make parked jobs claimable: those in ?1, each [queue, type, fair, priority, due, id]; ?2 is why they were parked.
-- Index: the key.
UPDATE ready SET parked = 0
FROM (
    SELECT value ->> 0 AS queue, value ->> 1 AS job_type, value ->> 2 AS fair, value ->> 3 AS priority,
        value ->> 4 AS scheduled_for, value ->> 5 AS job_id
    FROM json_each(?1)
) AS s
WHERE ready.queue = s.queue AND ready.job_type = s.job_type AND ready.fair = s.fair AND ready.parked = ?2
  AND ready.priority = s.priority AND ready.scheduled_for = s.scheduled_for AND ready.job_id = s.job_id

-- name: status
-- How a job stands, in the jobs or in the archive.
SELECT coalesce((
    SELECT {status}
    FROM job AS j LEFT JOIN ended AS e ON e.seq = j.seq LEFT JOIN running AS r ON r.seq = j.seq
    LEFT JOIN later AS l ON l.seq = j.seq LEFT JOIN waiting AS w ON w.seq = j.seq
    WHERE j.job_id = ?1), (SELECT status FROM archive WHERE job_id = ?1))

-- name: need
-- How a job stands that another is to depend on, in the jobs or in the archive; and its position, unless it knows
-- already that it is awaited.
SELECT {status}, CASE WHEN NOT coalesce(r.awaited, p.awaited, l.awaited, w.awaited, 0) THEN j.seq END
FROM job AS j
{joined}
WHERE j.job_id = ?1
UNION ALL
SELECT status, NULL FROM archive WHERE job_id = ?1

-- name: awaits
-- What outcome of its children a job waits for. Index: the key.
SELECT awaits FROM waiting WHERE seq = ?1

-- name: save_release
-- The end of ?1 has more to release than one transaction does.
INSERT OR IGNORE INTO release_due (parent_id) VALUES (?1)

-- name: release_due
-- The ends that have more to release.
SELECT parent_id FROM release_due LIMIT ?1

-- name: drop_release
-- The end of ?1 is released as far as this transaction goes. Index: the key.
DELETE FROM release_due WHERE parent_id = ?1

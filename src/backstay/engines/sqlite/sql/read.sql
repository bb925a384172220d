-- name: get
-- Whole records by id.
SELECT {record_columns}
FROM job
WHERE job_id IN (SELECT value FROM json_each(?1))

-- name: archive_get
-- What the archive keeps of the jobs in ?1.
SELECT job_id, archived_at, status, details FROM archive WHERE job_id IN (SELECT value FROM json_each(?1))

-- name: edges_of
-- The edges of one job, bounded, and how many there are of each kind. Index: edge_child.
SELECT
    (SELECT json_group_array(parent_id) FROM (SELECT parent_id FROM edge WHERE child_id = ?1 LIMIT ?2)),
    (SELECT json_group_array(child_id) FROM (SELECT child_id FROM edge WHERE parent_id = ?1 LIMIT ?2)),
    (SELECT count(*) FROM edge WHERE parent_id = ?1)

-- name: dead
-- Dead letters by type and error, the largest group first; max() picks the newest row of each. Index: job_ended_badly.
SELECT job_type,
    CASE WHEN last_error LIKE 'ChildFailed: %' THEN 'ChildFailed'
        ELSE coalesce(errors ->> '$[#-1].type', 'DependencyFailed') END,
    count(*), job_id, coalesce(last_error, ''), max(completed_at)
FROM job INDEXED BY job_ended_badly
WHERE status = 'failed' AND status IN ('failed', 'cancelled')
GROUP BY 1, 2
ORDER BY 3 DESC, 1, 2
LIMIT ?1

-- name: counts
-- Jobs per state: what is not completed is counted through small indexes (job_ready, job_fair, job_lease, job_later,
-- job_ended_badly), all jobs through the slimmest large one.
SELECT 'pending', (SELECT count(*) FROM job INDEXED BY job_ready WHERE status = 'pending' AND fairness_key IS NULL)
    + (SELECT count(*) FROM job INDEXED BY job_fair WHERE status = 'pending' AND fairness_key IS NOT NULL)
UNION ALL
SELECT 'processing', count(*) FROM job INDEXED BY job_lease WHERE status = 'processing'
UNION ALL
SELECT status, count(*) FROM job INDEXED BY job_later WHERE status > 'processing' GROUP BY status
UNION ALL
SELECT status, count(*) FROM job INDEXED BY job_ended_badly WHERE status IN ('failed', 'cancelled') GROUP BY status
UNION ALL
SELECT 'completed', count(*) FROM job

-- name: counters
-- The counters of a span, all buckets together, and how many are in each. Served by the primary key.
SELECT minute, job_type, queue, priority, outcome, sum(count), sum(ran_micros), sum(waited_micros),
    json_group_array(json_array(bucket, count)) FILTER (WHERE bucket <> 0)
FROM counter
WHERE minute >= ?1 AND minute < ?2
GROUP BY minute, job_type, queue, priority, outcome
ORDER BY minute, job_type, queue, priority, outcome

-- name: depths
-- Active jobs by queue, type, state and priority. Indexes: job_ready, job_fair, job_lease, job_later.
SELECT queue, job_type, 'pending', priority, count(*), min(scheduled_for), max(scheduled_for)
FROM job INDEXED BY job_ready WHERE status = 'pending' AND fairness_key IS NULL
GROUP BY queue, job_type, parked, priority
UNION ALL
SELECT queue, job_type, 'pending', priority, count(*), min(scheduled_for), max(scheduled_for)
FROM job INDEXED BY job_fair WHERE status = 'pending' AND fairness_key IS NOT NULL
GROUP BY queue, job_type, parked, priority
UNION ALL
SELECT queue, job_type, 'processing', priority, count(*), min(started_at), max(started_at)
FROM job INDEXED BY job_lease WHERE status = 'processing' GROUP BY queue, job_type, priority
UNION ALL
SELECT queue, job_type, status, priority, count(*), min(scheduled_for), max(scheduled_for)
FROM job INDEXED BY job_later WHERE status > 'processing' GROUP BY queue, job_type, status, priority

-- name: expired
-- Claims whose lease ran out, oldest first. Index: job_lease.
SELECT job_id, attempt, failures, max_attempts, snoozes, give_backs, worker_id, lease_expires_at,
    job_type, queue, priority, scheduled_for, started_at, parent_job_id
FROM job INDEXED BY job_lease
WHERE status = 'processing' AND lease_expires_at <= :now
ORDER BY lease_expires_at
LIMIT :limit

-- name: held_by
-- Claims of the workers in :workers, which are known to be dead. Index: job_lease; only processing rows.
SELECT job_id, attempt, failures, max_attempts, snoozes, give_backs, worker_id, lease_expires_at,
    job_type, queue, priority, scheduled_for, started_at, parent_job_id
FROM job INDEXED BY job_lease
WHERE status = 'processing' AND worker_id IN (SELECT value FROM json_each(:workers))
ORDER BY lease_expires_at
LIMIT :limit

-- name: standing
-- Where the jobs in ?1 stand: for those who wait, and to answer for writes that did not apply.
SELECT job_id, status, attempt, claim_token
FROM job
WHERE job_id IN (SELECT value FROM json_each(?1))

-- name: ahead
-- How many pending jobs of a queue and type come before one without a fairness key: of the first ?6 in sight, those that
-- a claim takes before it. Index: job_ready.
SELECT count(*)
FROM (
    SELECT priority, scheduled_for, job_id
    FROM job INDEXED BY job_ready
    WHERE status = 'pending' AND fairness_key IS NULL AND queue = ?1 AND job_type = ?2 AND parked = 0
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?6
)
WHERE (-priority, scheduled_for, job_id) < (-?3, ?4, ?5)

-- name: fair_ahead
-- How many pending jobs of a queue, type, priority and fairness key come before one of them: of the first ?6 in sight,
-- those that a claim takes before it. Index: job_fair.
SELECT count(*)
FROM (
    SELECT scheduled_for, job_id
    FROM job INDEXED BY job_fair
    WHERE status = 'pending' AND fairness_key = ?7 AND queue = ?1 AND job_type = ?2 AND parked = 0 AND priority = ?3
    ORDER BY scheduled_for, job_id
    LIMIT ?6
)
WHERE (scheduled_for, job_id) < (?4, ?5)

-- name: key_ahead
-- How many jobs of a concurrency key come before one that it holds back, of its queue, type and version: of the first
-- ?8 that are parked, and of those in sight. Indexes: job_parked, job_key.
SELECT count(*)
FROM (
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id FROM job INDEXED BY job_parked
        WHERE concurrency_key = ?1 AND parked = 1 AND rate_parked = 0 AND queue = ?2 AND job_type = ?3
          AND payload_version = ?4
        ORDER BY priority DESC, scheduled_for, job_id
        LIMIT ?8)
    UNION ALL
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id FROM job INDEXED BY job_key
        WHERE concurrency_key = ?1 AND status = 'pending' AND queue = ?2 AND job_type = ?3 AND payload_version = ?4
          AND parked = 0 AND priority >= ?5 AND (-priority, scheduled_for, job_id) < (-?5, ?6, ?7)
        LIMIT ?8)
)
WHERE (-priority, scheduled_for, job_id) < (-?5, ?6, ?7)

-- name: rate_ahead
-- How many jobs of a rate key and rate come before one that they hold back, of its queue, type and version: of the
-- first ?10 that are parked, and of those in sight. Indexes: job_rate_parked, job_rate.
SELECT count(*)
FROM (
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id FROM job INDEXED BY job_rate_parked
        WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND rate_parked = 1 AND queue = ?4
          AND job_type = ?5 AND payload_version = ?6
        ORDER BY priority DESC, scheduled_for, job_id
        LIMIT ?10)
    UNION ALL
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id FROM job INDEXED BY job_rate
        WHERE status = 'pending' AND parked = 0 AND rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3
          AND queue = ?4 AND job_type = ?5 AND payload_version = ?6
          AND priority >= ?7 AND (-priority, scheduled_for, job_id) < (-?7, ?8, ?9)
        LIMIT ?10)
)
WHERE (-priority, scheduled_for, job_id) < (-?7, ?8, ?9)

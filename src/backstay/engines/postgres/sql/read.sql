-- name: get
-- Whole records by id.
SELECT {record_columns}
FROM backstay.job
WHERE job_id = ANY ($1::uuid[])

-- name: archive_get
-- What the archive keeps of jobs.
SELECT job_id::text, archived_at, status, details FROM backstay.archive WHERE job_id = ANY ($1::uuid[])

-- name: edges_of
-- For each job: what it depends on, what depends on it, and how many those are. Indexes: edge_child, the primary key.
SELECT id::text,
    (SELECT coalesce(json_agg(parent_id), '[]')::text FROM (
        SELECT parent_id FROM backstay.edge WHERE child_id = id ORDER BY parent_id LIMIT $2) AS p),
    (SELECT coalesce(json_agg(child_id), '[]')::text FROM (
        SELECT child_id FROM backstay.edge WHERE parent_id = id ORDER BY child_id LIMIT $2) AS c),
    (SELECT count(*) FROM backstay.edge WHERE parent_id = id)
FROM unnest($1::uuid[]) AS n (id)

-- name: statuses
-- Where jobs stand, in the jobs or in the archive.
SELECT job_id::text, status FROM backstay.job WHERE job_id = ANY ($1::uuid[])
UNION ALL
SELECT job_id::text, status FROM backstay.archive WHERE job_id = ANY ($1::uuid[])

-- name: expired
-- Claims whose lease ran out, or whose worker is known to be dead, oldest first. Index: job_processing, which holds
-- nothing but what runs now. Locked rows are skipped: the worker may be waiting to settle the job.
SELECT job_id::text, attempt, failures, max_attempts, snoozes, give_backs, worker_id, lease_expires_at, job_type, queue,
    priority, scheduled_for, started_at, parent_job_id::text
FROM backstay.job
WHERE status = 'processing' AND (lease_expires_at <= coalesce($1::bigint, backstay.micros()) OR worker_id = ANY ($3::text[]))
ORDER BY lease_expires_at
LIMIT $2
FOR NO KEY UPDATE SKIP LOCKED

-- name: counts
-- Jobs per state: what is not completed is counted through small indexes (job_ready, job_keyed, job_fair, job_processing,
-- job_state), all jobs through the slimmest large one (job_pkey); no row is looked at where the visibility map is kept.
WITH few AS MATERIALIZED (
    SELECT 'pending' AS status, count(*) AS jobs FROM backstay.job
    WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
    UNION ALL
    SELECT 'pending', count(*) FROM backstay.job
    WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
    UNION ALL
    SELECT 'pending', count(*) FROM backstay.job WHERE status = 'pending' AND fairness_key IS NOT NULL
    UNION ALL
    SELECT 'processing', count(*) FROM backstay.job WHERE status = 'processing'
    UNION ALL
    SELECT status, count(*) FROM backstay.job
    WHERE status IN ('waiting', 'scheduled', 'retrying', 'failed', 'cancelled')
    GROUP BY status
)
SELECT status, sum(jobs)::bigint FROM few GROUP BY status
UNION ALL
SELECT 'completed', (SELECT count(*) FROM backstay.job) - (SELECT sum(jobs)::bigint FROM few)

-- name: depths
-- Active jobs by queue, type, state and priority. Indexes: job_ready, job_keyed, job_fair, job_processing, job_state.
-- Pending jobs may be millions, of a few types in a few queues: the indexes are walked from one of these to the next, and
-- the jobs of each are counted by what is in the index. Grouping all at once would read and hash names for each job.
WITH RECURSIVE
ready (queue, job_type) AS (
    (SELECT queue, job_type FROM backstay.job
    WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
    ORDER BY queue, job_type LIMIT 1)
    UNION ALL
    SELECT following.queue, following.job_type FROM ready AS r CROSS JOIN LATERAL (
        SELECT queue, job_type FROM backstay.job
        WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
            AND (queue, job_type) > (r.queue, r.job_type)
        ORDER BY queue, job_type LIMIT 1) AS following
),
keyed (queue, job_type) AS (
    (SELECT queue, job_type FROM backstay.job
    WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
    ORDER BY queue, job_type LIMIT 1)
    UNION ALL
    SELECT following.queue, following.job_type FROM keyed AS k CROSS JOIN LATERAL (
        SELECT queue, job_type FROM backstay.job
        WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
            AND (queue, job_type) > (k.queue, k.job_type)
        ORDER BY queue, job_type LIMIT 1) AS following
),
fair (queue, job_type) AS (
    (SELECT queue, job_type FROM backstay.job
    WHERE status = 'pending' AND fairness_key IS NOT NULL
    ORDER BY queue, job_type LIMIT 1)
    UNION ALL
    SELECT following.queue, following.job_type FROM fair AS f CROSS JOIN LATERAL (
        SELECT queue, job_type FROM backstay.job
        WHERE status = 'pending' AND fairness_key IS NOT NULL AND (queue, job_type) > (f.queue, f.job_type)
        ORDER BY queue, job_type LIMIT 1) AS following
)
SELECT r.queue, r.job_type, 'pending', n.* FROM ready AS r CROSS JOIN LATERAL (
    SELECT priority, count(*), min(scheduled_for), max(scheduled_for) FROM backstay.job
    WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
        AND queue = r.queue AND job_type = r.job_type
    GROUP BY priority) AS n
UNION ALL
SELECT k.queue, k.job_type, 'pending', n.* FROM keyed AS k CROSS JOIN LATERAL (
    SELECT priority, count(*), min(scheduled_for), max(scheduled_for) FROM backstay.job
    WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
        AND queue = k.queue AND job_type = k.job_type
    GROUP BY priority) AS n
UNION ALL
SELECT f.queue, f.job_type, 'pending', n.* FROM fair AS f CROSS JOIN LATERAL (
    SELECT priority, count(*), min(scheduled_for), max(scheduled_for) FROM backstay.job
    WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = f.queue AND job_type = f.job_type
    GROUP BY priority) AS n
UNION ALL
SELECT queue, job_type, 'processing', priority, count(*), min(started_at), max(started_at) FROM backstay.job
WHERE status = 'processing'
GROUP BY queue, job_type, priority
UNION ALL
SELECT queue, job_type, status, priority, count(*), min(scheduled_for), max(scheduled_for) FROM backstay.job
WHERE status IN ('waiting', 'scheduled', 'retrying')
GROUP BY queue, job_type, status, priority

-- name: place
-- The position of a pending job in claim order, and the key by which it is parked.
SELECT queue, job_type, payload_version, priority, scheduled_for, job_id::text, fairness_key, parked, rate_parked,
    concurrency_key, rate_key, rate_count, rate_micros
FROM backstay.job WHERE job_id = $1::uuid AND (status || '') = 'pending'

-- name: rate_ahead
-- How many jobs of a rate key and rate come before one that they hold back, of its queue, type and version: of the
-- first $10 that are parked, and of those in sight. Indexes: job_rate_parked, job_rate.
SELECT count(*)
FROM (
    (SELECT priority, scheduled_for, job_id FROM backstay.job
     WHERE rate_key = $1 AND rate_count = $2 AND rate_micros = $3 AND rate_parked AND queue = $4 AND job_type = $5
       AND payload_version = $6
     ORDER BY priority DESC, scheduled_for, job_id
     LIMIT $10)
    UNION ALL
    (SELECT priority, scheduled_for, job_id FROM backstay.job
     WHERE rate_key = $1 AND rate_count = $2 AND rate_micros = $3 AND status = 'pending' AND NOT parked AND queue = $4
       AND job_type = $5 AND payload_version = $6
       AND priority >= $7 AND (-priority, scheduled_for, job_id) < (-$7::integer, $8::bigint, $9::uuid)
     LIMIT $10)
) AS of_key
WHERE (-priority, scheduled_for, job_id) < (-$7::integer, $8::bigint, $9::uuid)

-- name: key_ahead
-- How many jobs of a concurrency key come before one that it holds back, of its queue, type and version: of the first
-- $8 that are parked, and of those in sight. Indexes: job_parked, job_key.
SELECT count(*)
FROM (
    (SELECT priority, scheduled_for, job_id FROM backstay.job
     WHERE concurrency_key = $1 AND parked AND NOT rate_parked AND queue = $2 AND job_type = $3 AND payload_version = $4
     ORDER BY priority DESC, scheduled_for, job_id
     LIMIT $8)
    UNION ALL
    (SELECT priority, scheduled_for, job_id FROM backstay.job
     WHERE concurrency_key = $1 AND status = 'pending' AND queue = $2 AND job_type = $3 AND payload_version = $4
       AND NOT parked AND priority >= $5 AND (-priority, scheduled_for, job_id) < (-$5::integer, $6::bigint, $7::uuid)
     LIMIT $8)
) AS of_key
WHERE (-priority, scheduled_for, job_id) < (-$5::integer, $6::bigint, $7::uuid)

-- name: ahead
-- How many pending jobs of a queue and type come before one without a fairness key: of the first $6 in sight, those that
-- a claim takes before it. Indexes: job_ready, job_keyed.
SELECT least($6::bigint, count(*))
FROM (
    (SELECT priority, scheduled_for, job_id FROM backstay.job
     WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
       AND queue = $1 AND job_type = $2
     ORDER BY priority DESC, scheduled_for, job_id
     LIMIT $6)
    UNION ALL
    (SELECT priority, scheduled_for, job_id FROM backstay.job
     WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
       AND queue = $1 AND job_type = $2 AND NOT parked
     ORDER BY priority DESC, scheduled_for, job_id
     LIMIT $6)
) AS in_sight
WHERE (-priority, scheduled_for, job_id) < (-$3::integer, $4::bigint, $5::uuid)

-- name: fair_ahead
-- How many pending jobs of a queue, type, priority and fairness key come before one of them: of the first $6 in sight,
-- those that a claim takes before it. Index: job_fair.
SELECT count(*)
FROM (
    SELECT scheduled_for, job_id FROM backstay.job
    WHERE status = 'pending' AND fairness_key = $7 AND queue = $1 AND job_type = $2 AND NOT parked AND priority = $3
    ORDER BY scheduled_for, job_id
    LIMIT $6
) AS in_sight
WHERE (scheduled_for, job_id) < ($4::bigint, $5::uuid)

-- name: counters
-- The counters of a span, all shards and buckets together, and how many are in each bucket. Index: the primary key.
SELECT minute, job_type, queue, priority, outcome, sum(jobs)::bigint, sum(ran)::bigint, sum(waited)::bigint,
    json_agg(json_build_array(bucket, jobs)) FILTER (WHERE bucket <> 0)::text
FROM (
    SELECT minute, job_type, queue, priority, outcome, bucket, sum(count) AS jobs, sum(ran_micros) AS ran,
        sum(waited_micros) AS waited
    FROM backstay.counter
    WHERE minute >= $1 AND minute < $2
    GROUP BY minute, job_type, queue, priority, outcome, bucket
) AS each
GROUP BY minute, job_type, queue, priority, outcome
ORDER BY minute, job_type, queue, priority, outcome

-- name: dead
-- Dead letters by type and error, the largest group first, each with its newest. Index: job_state.
SELECT job_type, kind, count(*), (array_agg(job_id::text ORDER BY completed_at DESC))[1],
    (array_agg(coalesce(last_error, '') ORDER BY completed_at DESC))[1], max(completed_at)
FROM (
    SELECT job_type, job_id, last_error, completed_at,
        CASE WHEN last_error LIKE 'ChildFailed: %' THEN 'ChildFailed'
            ELSE coalesce(errors::json -> -1 ->> 'type', 'DependencyFailed') END AS kind
    FROM backstay.job WHERE status = 'failed'
) AS failed
GROUP BY job_type, kind
ORDER BY 3 DESC, 1, 2
LIMIT $1

-- name: workers
-- All workers; a heartbeat's time is the server's.
SELECT worker_id, heartbeat_at, details FROM backstay.worker ORDER BY worker_id

-- name: job_types
-- What is known of types.
SELECT details FROM backstay.job_type ORDER BY job_type

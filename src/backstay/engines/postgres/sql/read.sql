-- name: get
-- Whole records by id.
SELECT {record_columns} FROM backstay.standing WHERE job_id = ANY ($1::uuid[])

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
SELECT id::text, status FROM unnest($1::uuid[]) AS n (id) CROSS JOIN LATERAL (
    SELECT backstay.status_of(id) AS status OFFSET 0) AS s
WHERE status IS NOT NULL

-- name: overdue
-- Jobs that have not started and were to, up to $2. Indexes: ready_expiring, later_expiring, waiting_expiring.
SELECT job_id::text FROM (
    (SELECT job_id FROM backstay.ready WHERE expires_at <= coalesce($1::bigint, backstay.micros()) LIMIT $2)
    UNION ALL (SELECT job_id FROM backstay.later WHERE expires_at <= coalesce($1::bigint, backstay.micros()) LIMIT $2)
    UNION ALL (SELECT job_id FROM backstay.waiting WHERE expires_at <= coalesce($1::bigint, backstay.micros()) LIMIT $2)
) AS found LIMIT $2

-- name: expired
-- Claims whose lease ran out, or whose worker is known to be dead, oldest first, of all that run, which are few. Locked
-- rows are skipped: the worker may be waiting to settle the job.
SELECT r.job_id::text, r.attempt, r.failures, j.max_attempts, coalesce(d.snoozes, 0), coalesce(d.give_backs, 0),
    r.worker_id, r.lease_expires_at, j.job_type, j.queue, coalesce(d.priority, j.priority),
    coalesce(d.scheduled_for, j.scheduled_for), r.started_at, j.parent_job_id::text, coalesce(d.suspicion, 0)
FROM (
    SELECT * FROM backstay.running
    WHERE lease_expires_at <= coalesce($1::bigint, backstay.micros()) OR worker_id = ANY ($3::text[])
    ORDER BY lease_expires_at
    LIMIT $2
    FOR NO KEY UPDATE SKIP LOCKED
) AS r
CROSS JOIN LATERAL (SELECT * FROM backstay.job WHERE job_id = r.job_id OFFSET 0) AS j
LEFT JOIN LATERAL (SELECT * FROM backstay.detail WHERE job_id = r.job_id OFFSET 0) AS d ON true
ORDER BY r.lease_expires_at

-- name: counts
-- Jobs in all ('stored') and per state: what is tallied, what arrived since, and those that run.
SELECT status, sum(count)::bigint FROM backstay.tally GROUP BY status
UNION ALL
SELECT 'stored', sum(count)::bigint FROM backstay.arrived HAVING count(*) > 0
UNION ALL
SELECT 'processing', count(*) FROM backstay.running

-- name: lined
-- The first $3 pending jobs in claim order after a place, $4, $5 and $6, of the queue $1 and the type $2 where they are given:
-- of the lanes whose first jobs come first, of which no more have to be looked at than jobs are wanted. Some seeks for each
-- lane, whatever its length. Index: ready_line.
WITH RECURSIVE lane (line, queue, job_type) AS (
    (SELECT line, queue, job_type FROM backstay.ready ORDER BY line, queue, job_type LIMIT 1)
    UNION ALL
    SELECT following.* FROM lane AS l CROSS JOIN LATERAL (
        SELECT line, queue, job_type FROM backstay.ready
        WHERE (line, queue, job_type) > (l.line, l.queue, l.job_type)
        ORDER BY line, queue, job_type LIMIT 1) AS following
), first AS MATERIALIZED (
    SELECT l.* FROM lane AS l CROSS JOIN LATERAL (
        (SELECT priority, scheduled_for, job_id FROM backstay.ready AS r
         WHERE r.line = l.line AND r.queue = l.queue AND r.job_type = l.job_type AND r.priority = $4::integer
           AND (r.scheduled_for, r.job_id) > ($5::bigint, $6::uuid)
         ORDER BY r.scheduled_for, r.job_id LIMIT 1)
        UNION ALL
        (SELECT priority, scheduled_for, job_id FROM backstay.ready AS r
         WHERE r.line = l.line AND r.queue = l.queue AND r.job_type = l.job_type AND r.priority < $4
         ORDER BY r.priority DESC, r.scheduled_for, r.job_id LIMIT 1)
        ORDER BY priority DESC LIMIT 1) AS head
    WHERE l.queue = coalesce($1::text, l.queue) AND l.job_type = coalesce($2::text, l.job_type)
    ORDER BY head.priority DESC, head.scheduled_for, head.job_id
    LIMIT $3
), hits AS MATERIALIZED (
    SELECT part.* FROM first AS l CROSS JOIN LATERAL (
        (SELECT priority, scheduled_for, job_id FROM backstay.ready AS r
         WHERE r.line = l.line AND r.queue = l.queue AND r.job_type = l.job_type AND r.priority = $4
           AND (r.scheduled_for, r.job_id) > ($5, $6)
         ORDER BY r.scheduled_for, r.job_id LIMIT $3)
        UNION ALL
        (SELECT priority, scheduled_for, job_id FROM backstay.ready AS r
         WHERE r.line = l.line AND r.queue = l.queue AND r.job_type = l.job_type AND r.priority < $4
         ORDER BY r.priority DESC, r.scheduled_for, r.job_id LIMIT $3)
    ) AS part
    ORDER BY part.priority DESC, part.scheduled_for, part.job_id
    LIMIT $3
)
SELECT {record_columns}, json_build_array(h.priority, h.scheduled_for, h.job_id)::text
FROM hits AS h CROSS JOIN LATERAL (SELECT * FROM backstay.standing AS s WHERE s.job_id = h.job_id OFFSET 0) AS standing
ORDER BY h.priority DESC, h.scheduled_for, h.job_id

-- name: pending_beyond
-- Whether there are more than $1 pending jobs. Index: ready_line.
SELECT 1 FROM backstay.ready LIMIT 1 OFFSET $1

-- name: depths
-- Active jobs by queue, type, state and priority, and since when the first and the last of each are due: seeks for each,
-- however many jobs there are. Pending are those that are in no other state; of the lines, only those in which any job
-- stands are looked at. Indexes: ready_line, later_kind, waiting_kind.
WITH runs AS MATERIALIZED (
    SELECT j.queue, j.job_type, coalesce(d.priority, j.priority) AS priority, count(*) AS count,
        min(r.started_at) AS first, max(r.started_at) AS last
    FROM backstay.running AS r
    CROSS JOIN LATERAL (SELECT queue, job_type, priority FROM backstay.job WHERE job_id = r.job_id OFFSET 0) AS j
    LEFT JOIN LATERAL (SELECT priority FROM backstay.detail WHERE job_id = r.job_id OFFSET 0) AS d ON true
    GROUP BY 1, 2, 3
), known AS MATERIALIZED (
    SELECT queue, job_type, priority, status, sum(count)::bigint AS count FROM (
        SELECT queue, job_type, priority, status, count FROM backstay.tally
        UNION ALL
        SELECT queue, job_type, priority, 'stored', count FROM backstay.arrived
        UNION ALL
        SELECT queue, job_type, priority, 'processing', count FROM runs) AS parts
    GROUP BY queue, job_type, priority, status
), line AS MATERIALIZED (
    SELECT n::smallint AS line FROM generate_series(0, 4) AS n
    WHERE n = (SELECT r.line FROM backstay.ready AS r WHERE r.line >= n
        ORDER BY r.line, r.queue, r.job_type, r.priority DESC, r.scheduled_for LIMIT 1)
)
SELECT k.queue, k.job_type, 'pending' AS status, k.priority, k.count, due.first, due.last
FROM (
    SELECT queue, job_type, priority, sum(CASE status WHEN 'stored' THEN count ELSE -count END)::bigint AS count FROM known
    GROUP BY queue, job_type, priority
) AS k CROSS JOIN LATERAL (
    SELECT min(first) AS first, max(last) AS last FROM (
        SELECT (SELECT r.scheduled_for FROM backstay.ready AS r
                WHERE r.line = line.line AND r.queue = k.queue AND r.job_type = k.job_type AND r.priority = k.priority
                ORDER BY r.scheduled_for LIMIT 1) AS first,
            (SELECT r.scheduled_for FROM backstay.ready AS r
                WHERE r.line = line.line AND r.queue = k.queue AND r.job_type = k.job_type AND r.priority = k.priority
                ORDER BY r.scheduled_for DESC LIMIT 1) AS last
        FROM line) AS of_line
) AS due
WHERE k.count > 0
UNION ALL
SELECT queue, job_type, 'processing', priority, count, first, last FROM runs
UNION ALL
SELECT k.queue, k.job_type, k.status, k.priority, k.count, (
        SELECT min(l.scheduled_for) FROM backstay.later AS l
        WHERE l.job_type = k.job_type AND l.queue = k.queue AND l.priority = k.priority AND l.status = k.status
    ), (
        SELECT max(l.scheduled_for) FROM backstay.later AS l
        WHERE l.job_type = k.job_type AND l.queue = k.queue AND l.priority = k.priority AND l.status = k.status
    )
FROM known AS k WHERE k.count > 0 AND k.status IN ('scheduled', 'retrying')
UNION ALL
SELECT k.queue, k.job_type, k.status, k.priority, k.count, (
        SELECT min(w.scheduled_for) FROM backstay.waiting AS w
        WHERE w.job_type = k.job_type AND w.queue = k.queue AND w.priority = k.priority
    ), (
        SELECT max(w.scheduled_for) FROM backstay.waiting AS w
        WHERE w.job_type = k.job_type AND w.queue = k.queue AND w.priority = k.priority
    )
FROM known AS k WHERE k.count > 0 AND k.status = 'waiting'

-- name: place
-- The position of a pending job in claim order, and the key by which it is parked.
SELECT r.queue, r.job_type, r.payload_version, r.priority, r.scheduled_for, r.job_id::text, r.fairness_key, r.parked,
    r.concurrency_key, r.rate_key, r.rate_count, r.rate_micros
FROM backstay.claimable AS j CROSS JOIN LATERAL (
    SELECT * FROM backstay.ready
    WHERE line = ANY (CASE j.line WHEN 2 THEN '{2,4}' WHEN 1 THEN '{1,3}' ELSE '{0}' END::smallint[])
      AND queue = j.queue AND job_type = j.job_type AND priority = j.priority AND scheduled_for = j.scheduled_for
      AND job_id = j.job_id) AS r
WHERE j.job_id = $1::uuid

-- name: rate_ahead
-- How many jobs of a rate key and rate come before one that they hold back, of its queue, type and version: of the
-- first $10 that are parked, and of those in sight. Index: ready_rate.
SELECT count(*)
FROM (
    (SELECT priority, scheduled_for, job_id FROM backstay.ready
     WHERE rate_key = $1 AND rate_count = $2 AND rate_micros = $3 AND parked = 2 AND queue = $4 AND job_type = $5
       AND payload_version = $6
     ORDER BY priority DESC, scheduled_for, job_id
     LIMIT $10)
    UNION ALL
    (SELECT priority, scheduled_for, job_id FROM backstay.ready
     WHERE rate_key = $1 AND rate_count = $2 AND rate_micros = $3 AND parked = 0 AND queue = $4
       AND job_type = $5 AND payload_version = $6
       AND priority >= $7 AND (-priority, scheduled_for, job_id) < (-$7::integer, $8::bigint, $9::uuid)
     LIMIT $10)
) AS of_key
WHERE (-priority, scheduled_for, job_id) < (-$7::integer, $8::bigint, $9::uuid)

-- name: key_ahead
-- How many jobs of a concurrency key come before one that it holds back, of its queue, type and version: of the first
-- $8 that are parked, and of those in sight. Index: ready_key.
SELECT count(*)
FROM (
    (SELECT priority, scheduled_for, job_id FROM backstay.ready
     WHERE concurrency_key = $1 AND parked = 1 AND queue = $2 AND job_type = $3 AND payload_version = $4
     ORDER BY priority DESC, scheduled_for, job_id
     LIMIT $8)
    UNION ALL
    (SELECT priority, scheduled_for, job_id FROM backstay.ready
     WHERE concurrency_key = $1 AND parked = 0 AND queue = $2 AND job_type = $3 AND payload_version = $4
       AND priority >= $5 AND (-priority, scheduled_for, job_id) < (-$5::integer, $6::bigint, $7::uuid)
     LIMIT $8)
) AS of_key
WHERE (-priority, scheduled_for, job_id) < (-$5::integer, $6::bigint, $7::uuid)

-- name: ahead
-- How many pending jobs of a queue and type come before one without a fairness key: of the first $6 in sight, those that
-- a claim takes before it. Index: ready_line.
SELECT least($6::bigint, count(*))
FROM unnest('{0,1}'::smallint[]) AS of (line) CROSS JOIN LATERAL (
    SELECT priority, scheduled_for, job_id FROM backstay.ready
    WHERE line = of.line AND queue = $1 AND job_type = $2
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT $6
) AS in_sight
WHERE (-priority, scheduled_for, job_id) < (-$3::integer, $4::bigint, $5::uuid)

-- name: fair_ahead
-- How many pending jobs of a queue, type, priority and fairness key come before one of them: of the first $6 in sight,
-- those that a claim takes before it. Index: ready_fair.
SELECT count(*)
FROM (
    SELECT scheduled_for, job_id FROM backstay.ready
    WHERE line = 2 AND fairness_key = $7 AND queue = $1 AND job_type = $2 AND priority = $3
    ORDER BY scheduled_for, job_id
    LIMIT $6
) AS in_sight
WHERE (scheduled_for, job_id) < ($4::bigint, $5::uuid)

-- name: counters
-- The counters of minutes from $1 to $2, all shards and buckets together, and how many are in each bucket: summed over
-- spans of $3, which is NULL for single minutes, and unless $4 over all types and queues. Index: the primary key.
SELECT span, job_type, queue, priority, outcome, sum(jobs)::bigint, sum(ran)::bigint, sum(waited)::bigint,
    json_agg(json_build_array(bucket, jobs)) FILTER (WHERE bucket <> 0)::text
FROM (
    SELECT coalesce($1::bigint + (minute - $1) / $3::bigint * $3, minute) AS span,
        CASE WHEN $4::boolean THEN job_type ELSE '' END AS job_type, CASE WHEN $4 THEN queue ELSE '' END AS queue,
        priority, outcome, bucket, sum(count) AS jobs, sum(ran_micros) AS ran, sum(waited_micros) AS waited
    FROM backstay.counted
    WHERE minute >= $1 AND minute < $2
    GROUP BY 1, 2, 3, priority, outcome, bucket
) AS each
GROUP BY span, job_type, queue, priority, outcome
ORDER BY span, job_type, queue, priority, outcome

-- name: dead
-- Dead letters by type and error, the largest group first, each with its newest. Only the index is read for those that are
-- not the newest. Index: ended_dead.
SELECT g.job_type, g.error_type, g.jobs, newest.job_id::text, coalesce(d.last_error, ''), newest.completed_at
FROM (
    SELECT job_type, error_type, count(*) AS jobs FROM backstay.ended WHERE status = 'failed'
    GROUP BY job_type, error_type
    ORDER BY jobs DESC, job_type, error_type
    LIMIT $1
) AS g CROSS JOIN LATERAL (
    SELECT job_id, completed_at FROM backstay.ended
    WHERE status = 'failed' AND job_type = g.job_type AND error_type = g.error_type
    ORDER BY job_type DESC, error_type DESC, completed_at DESC
    LIMIT 1
) AS newest LEFT JOIN LATERAL (SELECT last_error FROM backstay.detail WHERE job_id = newest.job_id OFFSET 0) AS d ON true
ORDER BY g.jobs DESC, g.job_type, g.error_type

-- name: former_workers
-- Those that left after $1, the last one first, $2 at most.
SELECT worker_id, heartbeat_at, details, left_at FROM backstay.former_worker AS former
WHERE left_at > $1 AND NOT EXISTS (SELECT 1 FROM backstay.worker AS w WHERE w.worker_id = former.worker_id)
ORDER BY left_at DESC, worker_id LIMIT $2

-- name: workers
-- The first $3 workers between two ids, NULL for all; a heartbeat's time is the server's. Index: the primary key.
SELECT worker_id, heartbeat_at, details FROM backstay.worker
WHERE worker_id > $1 AND worker_id < $2 ORDER BY worker_id LIMIT $3::bigint

-- name: count_workers
-- How many workers there are.
SELECT count(*) FROM backstay.worker

-- name: workers_named
-- The workers with these ids. Index: the primary key.
SELECT worker_id, heartbeat_at, details FROM backstay.worker WHERE worker_id = ANY ($1::text[]) ORDER BY worker_id

-- name: job_types
-- What is known of types.
SELECT details FROM backstay.job_type ORDER BY job_type

-- name: get
-- Whole records by id. Indexes: the unique one on job_id, the keys.
SELECT {record_columns}
FROM job AS j
{joined}
WHERE j.job_id IN (SELECT value FROM json_each(?1))

-- name: get_by_seq
-- Whole records by position, in the order asked for. Indexes: the keys.
SELECT {record_columns}
FROM json_each(?1) AS each CROSS JOIN job AS j ON j.seq = each.value
{joined}

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
-- Dead letters by type and error, the largest group first; max() picks the newest row of each. Only the index is read for
-- those that are not the newest. Index: ended_dead.
SELECT g.job_type, g.error_type, g.jobs, j.job_id, coalesce(d.last_error, ''), g.newest
FROM (
    SELECT job_type, error_type, count(*) AS jobs, max(completed_at) AS newest, seq FROM ended INDEXED BY ended_dead
    WHERE status = 'failed'
    GROUP BY job_type, error_type
    ORDER BY jobs DESC, job_type, error_type
    LIMIT ?1
) AS g CROSS JOIN job AS j ON j.seq = g.seq LEFT JOIN detail AS d ON d.seq = g.seq
ORDER BY g.jobs DESC, g.job_type, g.error_type

-- name: counts
-- Jobs in all ('stored') and per state: what is tallied, the few that arrived since, and those that run.
SELECT status, sum(count) FROM tally GROUP BY status
UNION ALL
SELECT 'stored', count(*) FROM uncounted
UNION ALL
SELECT 'processing', count(*) FROM running

-- name: counters
-- The counters of minutes from ?1 to ?2, all buckets together, and how many are in each: summed over spans of ?3, which
-- is NULL for single minutes, and unless ?4 over all types and queues; with the few submits that are not in them yet.
-- Served by the primary key.
SELECT span, job_type, queue, priority, outcome, sum(count), sum(ran), sum(waited),
    json_group_array(json_array(bucket, count)) FILTER (WHERE bucket <> 0)
FROM (
    SELECT coalesce(?1 + (minute - ?1) / ?3 * ?3, minute) AS span, iif(?4, job_type, '') AS job_type,
        iif(?4, queue, '') AS queue, priority, outcome, bucket, sum(count) AS count, sum(ran_micros) AS ran,
        sum(waited_micros) AS waited
    FROM counter
    WHERE minute >= ?1 AND minute < ?2
    GROUP BY 1, 2, 3, priority, outcome, bucket
    UNION ALL
    SELECT coalesce(?1 + (minute - ?1) / ?3 * ?3, minute), iif(?4, job_type, ''), iif(?4, queue, ''), priority,
        outcome, bucket, sum(count), sum(ran_micros), sum(waited_micros)
    FROM uncounted
    WHERE minute >= ?1 AND minute < ?2
    GROUP BY 1, 2, 3, priority, outcome, bucket
)
GROUP BY span, job_type, queue, priority, outcome
ORDER BY span, job_type, queue, priority, outcome

-- name: depths
-- Active jobs by queue, type, state and priority, and since when the first and the last of each are due: seeks for each,
-- however many jobs there are. Pending are those that are in no other state. Of the parts of a line, only those in which
-- any job stands are looked at. Indexes: the key of `ready`, later_kind, waiting_kind.
WITH runs AS MATERIALIZED (
    SELECT j.queue, j.job_type, coalesce(d.priority, j.priority) AS priority, count(*) AS count,
        min(r.started_at) AS first, max(r.started_at) AS last
    FROM running AS r CROSS JOIN job AS j ON j.seq = r.seq LEFT JOIN detail AS d ON d.seq = r.seq
    GROUP BY 1, 2, 3
), known AS MATERIALIZED (
    SELECT queue, job_type, priority, status, count FROM tally
    UNION ALL
    SELECT queue, job_type, priority, 'stored', count(*) FROM uncounted GROUP BY 1, 2, 3
    UNION ALL
    SELECT queue, job_type, priority, 'processing', count FROM runs
), part (fair, parked) AS MATERIALIZED (
    SELECT 0, 0
    UNION ALL
    SELECT 1, 0 WHERE EXISTS (SELECT 1 FROM ready INDEXED BY ready_fair WHERE fairness_key IS NOT NULL)
    UNION ALL
    SELECT value, 1 FROM json_each('[0, 1]')
    WHERE EXISTS (SELECT 1 FROM ready INDEXED BY ready_parked WHERE parked = 1)
    UNION ALL
    SELECT value, 2 FROM json_each('[0, 1]')
    WHERE EXISTS (SELECT 1 FROM ready INDEXED BY ready_rate_parked WHERE parked = 2)
)
SELECT queue, job_type, 'pending', priority, count, (
        SELECT min(due) FROM (SELECT (
            SELECT scheduled_for FROM ready AS r
            WHERE r.queue = k.queue AND r.job_type = k.job_type AND r.fair = part.fair AND r.parked = part.parked
              AND r.priority = k.priority
            ORDER BY scheduled_for LIMIT 1) AS due FROM part)
    ) AS first, (
        SELECT max(due) FROM (SELECT (
            SELECT scheduled_for FROM ready AS r
            WHERE r.queue = k.queue AND r.job_type = k.job_type AND r.fair = part.fair AND r.parked = part.parked
              AND r.priority = k.priority
            ORDER BY scheduled_for DESC LIMIT 1) AS due FROM part)
    )
FROM (
    SELECT queue, job_type, priority, sum(CASE status WHEN 'stored' THEN count ELSE -count END) AS count FROM known
    GROUP BY queue, job_type, priority
) AS k
WHERE count > 0
UNION ALL
SELECT queue, job_type, 'processing', priority, count, first, last FROM runs
UNION ALL
SELECT queue, job_type, status, priority, count, (
        SELECT min(scheduled_for) FROM later AS l INDEXED BY later_kind
        WHERE l.job_type = t.job_type AND l.queue = t.queue AND l.priority = t.priority AND l.status = t.status
    ), (
        SELECT max(scheduled_for) FROM later AS l INDEXED BY later_kind
        WHERE l.job_type = t.job_type AND l.queue = t.queue AND l.priority = t.priority AND l.status = t.status
    )
FROM tally AS t WHERE count > 0 AND (status = 'scheduled' OR status = 'retrying')
UNION ALL
SELECT queue, job_type, 'waiting', priority, count, (
        SELECT min(scheduled_for) FROM waiting AS w INDEXED BY waiting_kind
        WHERE w.job_type = t.job_type AND w.queue = t.queue AND w.priority = t.priority
    ), (
        SELECT max(scheduled_for) FROM waiting AS w INDEXED BY waiting_kind
        WHERE w.job_type = t.job_type AND w.queue = t.queue AND w.priority = t.priority
    )
FROM tally AS t WHERE count > 0 AND status = 'waiting'

-- name: expired
-- Claims whose lease ran out, oldest first. Reads all of `running`, which is short.
SELECT {expired_columns}
FROM (
    SELECT * FROM running WHERE lease_expires_at <= :now ORDER BY lease_expires_at LIMIT :limit
) AS r CROSS JOIN job AS j ON j.seq = r.seq LEFT JOIN detail AS d ON d.seq = r.seq
ORDER BY r.lease_expires_at

-- name: held_by
-- Claims of the workers in :workers, which are known to be dead. Reads all of `running`.
SELECT {expired_columns}
FROM (
    SELECT * FROM running WHERE worker_id IN (SELECT value FROM json_each(:workers))
    ORDER BY lease_expires_at LIMIT :limit
) AS r CROSS JOIN job AS j ON j.seq = r.seq LEFT JOIN detail AS d ON d.seq = r.seq
ORDER BY r.lease_expires_at

-- name: statuses
-- In which state the jobs in ?1 are, for those who wait. Indexes: the unique one on job_id, the keys.
SELECT j.job_id, {status}
FROM job AS j LEFT JOIN ended AS e ON e.seq = j.seq LEFT JOIN running AS r ON r.seq = j.seq
LEFT JOIN later AS l ON l.seq = j.seq LEFT JOIN waiting AS w ON w.seq = j.seq
WHERE j.job_id IN (SELECT value FROM json_each(?1))

-- name: line
-- The key of a pending job in `ready`, and what may hold it back. Index: the key.
SELECT p.queue, p.job_type, p.payload_version, p.priority, p.scheduled_for, p.job_id, p.fairness_key, p.parked,
    p.concurrency_key, p.rate_key, p.rate_count, p.rate_micros
FROM job AS j
{joined}
WHERE j.job_id = ?1 AND p.seq IS NOT NULL

-- name: ahead
-- How many pending jobs of a queue and type come before one without a fairness key: of the first ?6 in sight, those that
-- a claim takes before it. Index: the key.
SELECT count(*)
FROM (
    SELECT priority, scheduled_for, job_id
    FROM ready
    WHERE queue = ?1 AND job_type = ?2 AND fair = 0 AND parked = 0
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?6
)
WHERE (-priority, scheduled_for, job_id) < (-?3, ?4, ?5)

-- name: fair_ahead
-- How many pending jobs of a queue, type, priority and fairness key come before one of them: of the first ?6 in sight,
-- those that a claim takes before it. Index: ready_fair.
SELECT count(*)
FROM (
    SELECT scheduled_for, job_id
    FROM ready INDEXED BY ready_fair
    WHERE fairness_key = ?7 AND queue = ?1 AND job_type = ?2 AND parked = 0 AND priority = ?3
    ORDER BY scheduled_for, job_id
    LIMIT ?6
)
WHERE (scheduled_for, job_id) < (?4, ?5)

-- name: key_ahead
-- How many jobs of a concurrency key come before one that it holds back, of its queue, type and version: of the first
-- ?8 that are parked, and of those in sight. Indexes: ready_parked, ready_key.
SELECT count(*)
FROM (
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id FROM ready INDEXED BY ready_parked
        WHERE concurrency_key = ?1 AND parked = 1 AND queue = ?2 AND job_type = ?3 AND payload_version = ?4
        ORDER BY priority DESC, scheduled_for, job_id
        LIMIT ?8)
    UNION ALL
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id FROM ready INDEXED BY ready_key
        WHERE concurrency_key = ?1 AND queue = ?2 AND job_type = ?3 AND payload_version = ?4
          AND parked = 0 AND priority >= ?5 AND (-priority, scheduled_for, job_id) < (-?5, ?6, ?7)
        LIMIT ?8)
)
WHERE (-priority, scheduled_for, job_id) < (-?5, ?6, ?7)

-- name: rate_ahead
-- How many jobs of a rate key and rate come before one that they hold back, of its queue, type and version: of the
-- first ?10 that are parked, and of those in sight. Indexes: ready_rate_parked, ready_rate.
SELECT count(*)
FROM (
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id FROM ready INDEXED BY ready_rate_parked
        WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND parked = 2 AND queue = ?4
          AND job_type = ?5 AND payload_version = ?6
        ORDER BY priority DESC, scheduled_for, job_id
        LIMIT ?10)
    UNION ALL
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id FROM ready INDEXED BY ready_rate
        WHERE parked = 0 AND rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3
          AND queue = ?4 AND job_type = ?5 AND payload_version = ?6
          AND priority >= ?7 AND (-priority, scheduled_for, job_id) < (-?7, ?8, ?9)
        LIMIT ?10)
)
WHERE (-priority, scheduled_for, job_id) < (-?7, ?8, ?9)

-- name: lanes_in_order
-- The parts of lines whose first jobs come first after a place, :priority, :due and :job_id, up to :limit: among as many
-- first jobs of a search in claim order there are none of other parts. Some seeks for each, whatever its length. Index: the
-- key of `ready`.
WITH RECURSIVE lane (at) AS (
    SELECT * FROM (
        SELECT json_array(queue, job_type, fair, parked) FROM ready ORDER BY queue, job_type, fair, parked LIMIT 1)
    UNION ALL
    SELECT coalesce(
        (SELECT json_array(queue, job_type, fair, parked) FROM ready
         WHERE queue = at ->> 0 AND job_type = at ->> 1 AND fair = at ->> 2 AND parked > at ->> 3 ORDER BY parked LIMIT 1),
        (SELECT json_array(queue, job_type, fair, parked) FROM ready
         WHERE queue = at ->> 0 AND job_type = at ->> 1 AND fair > at ->> 2 ORDER BY fair, parked LIMIT 1),
        (SELECT json_array(queue, job_type, fair, parked) FROM ready
         WHERE queue = at ->> 0 AND job_type > at ->> 1 ORDER BY job_type, fair, parked LIMIT 1),
        (SELECT json_array(queue, job_type, fair, parked) FROM ready
         WHERE queue > at ->> 0 ORDER BY queue, job_type, fair, parked LIMIT 1))
    FROM lane WHERE at IS NOT NULL
), first AS MATERIALIZED (
    SELECT *, coalesce((
            SELECT json_array(-priority, scheduled_for, job_id) FROM ready AS r
            WHERE r.queue = l.queue AND r.job_type = l.job_type AND r.fair = l.fair AND r.parked = l.parked
              AND r.priority = :priority AND (r.scheduled_for, r.job_id) > (:due, :job_id)
            ORDER BY scheduled_for, job_id LIMIT 1
        ), (
            SELECT json_array(-priority, scheduled_for, job_id) FROM ready AS r
            WHERE r.queue = l.queue AND r.job_type = l.job_type AND r.fair = l.fair AND r.parked = l.parked
              AND r.priority < :priority
            ORDER BY priority DESC, scheduled_for, job_id LIMIT 1)) AS head
    FROM (SELECT at ->> 0 AS queue, at ->> 1 AS job_type, at ->> 2 AS fair, at ->> 3 AS parked FROM lane
        WHERE at IS NOT NULL) AS l
    WHERE queue = coalesce(:queue, queue) AND job_type = coalesce(:job_type, job_type)
)
SELECT queue, job_type, fair, parked FROM first WHERE head IS NOT NULL
ORDER BY head ->> 0, head ->> 1, head ->> 2
LIMIT :limit

-- name: lane_in_order
-- The first jobs of a part of a line after a place, up to :limit. Index: the key of `ready`.
SELECT priority, scheduled_for, job_id, seq
FROM (
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id, seq FROM ready
        WHERE queue = :queue AND job_type = :job_type AND fair = :fair AND parked = :parked AND priority = :priority
          AND (scheduled_for, job_id) > (:due, :job_id)
        ORDER BY scheduled_for, job_id LIMIT :limit)
    UNION ALL
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id, seq FROM ready
        WHERE queue = :queue AND job_type = :job_type AND fair = :fair AND parked = :parked AND priority < :priority
        ORDER BY priority DESC, scheduled_for, job_id LIMIT :limit)
)
ORDER BY priority DESC, scheduled_for, job_id LIMIT :limit

-- name: many_pending
-- Whether more than ?1 jobs are pending.
SELECT 1 FROM ready LIMIT 1 OFFSET ?1

-- name: queues
-- The settings of all queues that someone has changed. Reads all of `queue`, which has only those.
SELECT {queue_columns} FROM queue ORDER BY name

-- name: queue
-- The settings of a queue. Index: the key.
SELECT {queue_columns} FROM queue WHERE name = ?1

-- name: limits
-- What was set at run time for types and keys. Reads all of `run_limit`, which has only that.
SELECT {limit_columns} FROM run_limit ORDER BY of, name

-- name: limit
-- What was set at run time for a type or a key. Index: the key.
SELECT {limit_columns} FROM run_limit WHERE of = ?1 AND name = ?2

-- name: limits_named
-- What was set at run time for types and keys of the names in ?1. Index: the key.
SELECT {limit_columns} FROM run_limit WHERE of IN ('key', 'type') AND name IN (SELECT value FROM json_each(?1))

-- name: former_workers
-- Workers that have left after ?1, the last first. Reads all of `former_worker`, which has those of a day.
SELECT worker_id, heartbeat_at, details, left_at FROM former_worker
WHERE left_at > ?1 AND worker_id NOT IN (SELECT worker_id FROM worker)
ORDER BY left_at DESC, worker_id LIMIT ?2

-- name: workers_named
-- The workers in ?1, by id. Index: the key.
SELECT worker_id, heartbeat_at, details FROM worker
WHERE worker_id IN (SELECT value FROM json_each(?1)) ORDER BY worker_id

-- name: workers_between
-- A page of workers by id. Index: the key.
SELECT worker_id, heartbeat_at, details FROM worker
WHERE worker_id > ?1 AND worker_id < ?2 ORDER BY worker_id LIMIT ?3

-- name: count_workers
-- How many workers there are.
SELECT count(*) FROM worker

-- name: job_types
-- What is known about all types, by name.
SELECT details FROM job_type ORDER BY job_type

-- name: output
-- Parts of the output of a job, of one take, with entries after ?4. Index: the key.
SELECT attempt, take, first, last, size, written_at, text FROM output
WHERE job_id = ?1 AND attempt = ?2 AND take = ?3 AND last > ?4 ORDER BY last LIMIT ?5

-- name: output_end
-- The end of the output of a job. Index: the key.
SELECT attempt, take, last, size FROM output WHERE job_id = ?1 ORDER BY attempt DESC, take DESC, last DESC LIMIT 1

-- name: step
-- The answer of a step. Index: the key.
SELECT answer FROM step WHERE job_id = ?1 AND kind = ?2 AND name = ?3

-- Active jobs by queue, type, state and priority. Indexes: job_ready, job_keyed, job_fair, job_processing, job_state.
-- Pending jobs may be millions, of a few types in a few queues: the indexes are walked from one of these to the next, and
-- the jobs of each are counted by what is in the index. Grouping all at once would read and hash names for each job.
WITH RECURSIVE
ready (queue, job_type) AS (
    (SELECT queue, job_type FROM holdfast.job
    WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
    ORDER BY queue, job_type LIMIT 1)
    UNION ALL
    SELECT following.queue, following.job_type FROM ready AS r CROSS JOIN LATERAL (
        SELECT queue, job_type FROM holdfast.job
        WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
            AND (queue, job_type) > (r.queue, r.job_type)
        ORDER BY queue, job_type LIMIT 1) AS following
),
keyed (queue, job_type) AS (
    (SELECT queue, job_type FROM holdfast.job
    WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
    ORDER BY queue, job_type LIMIT 1)
    UNION ALL
    SELECT following.queue, following.job_type FROM keyed AS k CROSS JOIN LATERAL (
        SELECT queue, job_type FROM holdfast.job
        WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
            AND (queue, job_type) > (k.queue, k.job_type)
        ORDER BY queue, job_type LIMIT 1) AS following
),
fair (queue, job_type) AS (
    (SELECT queue, job_type FROM holdfast.job
    WHERE status = 'pending' AND fairness_key IS NOT NULL
    ORDER BY queue, job_type LIMIT 1)
    UNION ALL
    SELECT following.queue, following.job_type FROM fair AS f CROSS JOIN LATERAL (
        SELECT queue, job_type FROM holdfast.job
        WHERE status = 'pending' AND fairness_key IS NOT NULL AND (queue, job_type) > (f.queue, f.job_type)
        ORDER BY queue, job_type LIMIT 1) AS following
)
SELECT r.queue, r.job_type, 'pending', n.* FROM ready AS r CROSS JOIN LATERAL (
    SELECT priority, count(*), min(scheduled_for), max(scheduled_for) FROM holdfast.job
    WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
        AND queue = r.queue AND job_type = r.job_type
    GROUP BY priority) AS n
UNION ALL
SELECT k.queue, k.job_type, 'pending', n.* FROM keyed AS k CROSS JOIN LATERAL (
    SELECT priority, count(*), min(scheduled_for), max(scheduled_for) FROM holdfast.job
    WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
        AND queue = k.queue AND job_type = k.job_type
    GROUP BY priority) AS n
UNION ALL
SELECT f.queue, f.job_type, 'pending', n.* FROM fair AS f CROSS JOIN LATERAL (
    SELECT priority, count(*), min(scheduled_for), max(scheduled_for) FROM holdfast.job
    WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = f.queue AND job_type = f.job_type
    GROUP BY priority) AS n
UNION ALL
SELECT queue, job_type, 'processing', priority, count(*), min(started_at), max(started_at) FROM holdfast.job
WHERE status = 'processing'
GROUP BY queue, job_type, priority
UNION ALL
SELECT queue, job_type, status, priority, count(*), min(scheduled_for), max(scheduled_for) FROM holdfast.job
WHERE status IN ('waiting', 'scheduled', 'retrying')
GROUP BY queue, job_type, status, priority

-- Active jobs by queue, type and state. Indexes: job_ready, job_keyed, job_fair, job_processing, job_state.
SELECT queue, job_type, status, sum(jobs)::bigint, min(oldest)
FROM (
    SELECT queue, job_type, 'pending' AS status, count(*) AS jobs, min(scheduled_for) AS oldest FROM holdfast.job
    WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
    GROUP BY queue, job_type
    UNION ALL
    SELECT queue, job_type, 'pending', count(*), min(scheduled_for) FROM holdfast.job
    WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
    GROUP BY queue, job_type
    UNION ALL
    SELECT queue, job_type, 'pending', count(*), min(scheduled_for) FROM holdfast.job
    WHERE status = 'pending' AND fairness_key IS NOT NULL
    GROUP BY queue, job_type
    UNION ALL
    SELECT queue, job_type, 'processing', count(*), min(started_at) FROM holdfast.job
    WHERE status = 'processing'
    GROUP BY queue, job_type
    UNION ALL
    SELECT queue, job_type, status, count(*), min(scheduled_for) FROM holdfast.job
    WHERE status IN ('waiting', 'scheduled', 'retrying')
    GROUP BY queue, job_type, status
) AS each
GROUP BY queue, job_type, status
ORDER BY queue, job_type, status

-- Active jobs by queue, type, state and priority. Indexes: job_ready, job_keyed, job_fair, job_processing, job_state.
SELECT queue, job_type, 'pending', priority, count(*), min(scheduled_for), max(scheduled_for) FROM holdfast.job
WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
GROUP BY queue, job_type, priority
UNION ALL
SELECT queue, job_type, 'pending', priority, count(*), min(scheduled_for), max(scheduled_for) FROM holdfast.job
WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
GROUP BY queue, job_type, priority
UNION ALL
SELECT queue, job_type, 'pending', priority, count(*), min(scheduled_for), max(scheduled_for) FROM holdfast.job
WHERE status = 'pending' AND fairness_key IS NOT NULL
GROUP BY queue, job_type, priority
UNION ALL
SELECT queue, job_type, 'processing', priority, count(*), min(started_at), max(started_at) FROM holdfast.job
WHERE status = 'processing'
GROUP BY queue, job_type, priority
UNION ALL
SELECT queue, job_type, status, priority, count(*), min(scheduled_for), max(scheduled_for) FROM holdfast.job
WHERE status IN ('waiting', 'scheduled', 'retrying')
GROUP BY queue, job_type, status, priority

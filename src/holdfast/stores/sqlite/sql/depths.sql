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

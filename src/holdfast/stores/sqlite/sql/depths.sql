-- Active jobs by queue, type and state. Indexes: job_ready, job_fair, job_lease, job_later.
SELECT queue, job_type, 'pending', count(*), min(scheduled_for)
FROM job INDEXED BY job_ready WHERE status = 'pending' AND fairness_key IS NULL GROUP BY queue, job_type
UNION ALL
SELECT queue, job_type, 'pending', count(*), min(scheduled_for)
FROM job INDEXED BY job_fair WHERE status = 'pending' AND fairness_key IS NOT NULL GROUP BY queue, job_type
UNION ALL
SELECT queue, job_type, 'processing', count(*), min(started_at)
FROM job INDEXED BY job_lease WHERE status = 'processing' GROUP BY queue, job_type
UNION ALL
SELECT queue, job_type, status, count(*), min(scheduled_for)
FROM job INDEXED BY job_later WHERE status > 'processing' GROUP BY queue, job_type, status

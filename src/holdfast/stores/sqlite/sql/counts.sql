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

-- When the next scheduled or retrying job is due. Index: job_due.
SELECT min(scheduled_for) FROM job INDEXED BY job_due WHERE status IN ('scheduled', 'retrying')

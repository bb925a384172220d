-- When the next scheduled or retrying job is due. Index: job_due.
SELECT scheduled_for FROM holdfast.job WHERE status IN ('scheduled', 'retrying') ORDER BY scheduled_for LIMIT 1

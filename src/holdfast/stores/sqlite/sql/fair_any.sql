-- Whether jobs with a fairness key wait in a queue and type. Index: job_fair.
SELECT EXISTS (
    SELECT 1 FROM job INDEXED BY job_fair
    WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = ?1 AND job_type = ?2 AND parked = 0)

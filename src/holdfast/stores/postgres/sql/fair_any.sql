-- Whether jobs with a fairness key wait in a lane. Index: job_fair.
SELECT EXISTS (
    SELECT 1 FROM holdfast.job
    WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = $1 AND job_type = $2 AND NOT parked)

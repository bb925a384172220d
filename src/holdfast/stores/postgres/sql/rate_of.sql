-- The limit of a rate key, as one of its pending jobs has it. Indexes: job_rate_parked, job_rate.
(SELECT rate_count, rate_micros FROM holdfast.job WHERE rate_parked AND rate_key = $1 LIMIT 1)
UNION ALL
(SELECT rate_count, rate_micros FROM holdfast.job
 WHERE status = 'pending' AND NOT parked AND rate_key = $1 LIMIT 1)
LIMIT 1

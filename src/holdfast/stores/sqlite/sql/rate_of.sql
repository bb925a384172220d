-- The limit of a rate key, as one of its pending jobs has it. Indexes: job_rate_parked, job_rate.
SELECT * FROM (
    SELECT rate_count, rate_micros FROM job INDEXED BY job_rate_parked WHERE rate_parked = 1 AND rate_key = ?1 LIMIT 1)
UNION ALL
SELECT * FROM (
    SELECT rate_count, rate_micros FROM job INDEXED BY job_rate
    WHERE status = 'pending' AND parked = 0 AND rate_key = ?1 LIMIT 1)
LIMIT 1

-- The rate key of a job and its rate.
SELECT rate_key, rate_count, rate_micros FROM holdfast.job WHERE job_id = $1::uuid AND rate_count IS NOT NULL

-- Where a pending job stands in line, and by which key it is parked.
SELECT queue, job_type, payload_version, priority, scheduled_for, job_id::text, fairness_key, parked, rate_parked,
    concurrency_key, rate_key, rate_count, rate_micros
FROM holdfast.job WHERE job_id = $1::uuid AND (status || '') = 'pending'

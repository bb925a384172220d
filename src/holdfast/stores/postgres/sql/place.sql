-- Where a pending job stands in line.
SELECT queue, job_type, priority, scheduled_for, job_id::text, fairness_key
FROM holdfast.job WHERE job_id = $1::uuid AND (status || '') = 'pending'

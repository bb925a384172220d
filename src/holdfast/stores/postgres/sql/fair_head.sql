-- The head of one fairness key at one priority, locked. Index: job_fair.
SELECT priority, scheduled_for, job_id::text, seq, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros
FROM holdfast.job
WHERE status = 'pending' AND fairness_key = $4 AND queue = $1 AND job_type = $2 AND NOT parked AND priority = $3
  AND payload_version <= $6 AND NOT seq = ANY ($7::bigint[])
ORDER BY scheduled_for, job_id
LIMIT $5
FOR UPDATE SKIP LOCKED

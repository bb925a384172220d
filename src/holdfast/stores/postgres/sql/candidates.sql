-- The head of one lane among jobs without any key, locked. Index: job_ready.
SELECT priority, scheduled_for, job_id::text, seq, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros
FROM holdfast.job
WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
  AND queue = $1 AND job_type = $2 AND payload_version <= $4 AND ($5::integer IS NULL OR priority = $5)
  AND NOT seq = ANY ($6::bigint[])
ORDER BY priority DESC, scheduled_for, job_id
LIMIT $3
FOR UPDATE SKIP LOCKED

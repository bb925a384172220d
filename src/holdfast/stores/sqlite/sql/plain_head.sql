-- The head of the jobs without a fairness key at one priority, as one JSON value. Index: job_ready.
SELECT json_group_array(json_array(
    priority, scheduled_for, job_id, seq, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros))
FROM (
    SELECT priority, scheduled_for, job_id, seq, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros
    FROM job INDEXED BY job_ready
    WHERE status = 'pending' AND fairness_key IS NULL AND queue = ?1 AND job_type = ?2 AND parked = 0 AND priority = ?3
      AND payload_version <= ?5
    ORDER BY scheduled_for, job_id
    LIMIT ?4
)

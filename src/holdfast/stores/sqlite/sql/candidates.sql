-- The head of one queue and type, in claim order, as one JSON value: a row per step would cost a GIL hand-over each.
-- Index: job_ready, named because without statistics the planner prefers another and sorts every pending row.
SELECT json_group_array(json_array(
    priority, scheduled_for, job_id, seq, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros))
FROM (
    SELECT priority, scheduled_for, job_id, seq, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros
    FROM job INDEXED BY job_ready
    WHERE status = 'pending' AND fairness_key IS NULL AND queue = ?1 AND job_type = ?2 AND parked = 0
      AND payload_version <= ?4
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?3
)

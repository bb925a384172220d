-- How many jobs of a concurrency key come before one that it holds back, of its queue, type and version: of the first
-- ?8 that are parked, and of those in sight. Indexes: job_parked, job_key.
SELECT count(*)
FROM (
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id FROM job INDEXED BY job_parked
        WHERE concurrency_key = ?1 AND parked = 1 AND rate_parked = 0 AND queue = ?2 AND job_type = ?3
          AND payload_version = ?4
        ORDER BY priority DESC, scheduled_for, job_id
        LIMIT ?8)
    UNION ALL
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id FROM job INDEXED BY job_key
        WHERE concurrency_key = ?1 AND status = 'pending' AND queue = ?2 AND job_type = ?3 AND payload_version = ?4
          AND parked = 0 AND priority >= ?5 AND (-priority, scheduled_for, job_id) < (-?5, ?6, ?7)
        LIMIT ?8)
)
WHERE (-priority, scheduled_for, job_id) < (-?5, ?6, ?7)

-- How many jobs of a rate key and rate come before one that they hold back, of its queue, type and version: of the
-- first ?10 that are parked, and of those in sight. Indexes: job_rate_parked, job_rate.
SELECT count(*)
FROM (
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id FROM job INDEXED BY job_rate_parked
        WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND rate_parked = 1 AND queue = ?4
          AND job_type = ?5 AND payload_version = ?6
        ORDER BY priority DESC, scheduled_for, job_id
        LIMIT ?10)
    UNION ALL
    SELECT * FROM (
        SELECT priority, scheduled_for, job_id FROM job INDEXED BY job_rate
        WHERE status = 'pending' AND parked = 0 AND rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3
          AND queue = ?4 AND job_type = ?5 AND payload_version = ?6
          AND priority >= ?7 AND (-priority, scheduled_for, job_id) < (-?7, ?8, ?9)
        LIMIT ?10)
)
WHERE (-priority, scheduled_for, job_id) < (-?7, ?8, ?9)

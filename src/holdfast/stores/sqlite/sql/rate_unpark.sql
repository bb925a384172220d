-- Put parked jobs of a rate key and rate, queue, type and version back in sight, in claim order: each that is among the
-- first ?7 of those parked and those in sight. What is in sight and less urgent keeps nobody out.
-- Indexes: job_rate_parked, job_rate.
WITH next AS MATERIALIZED (
    SELECT seq, priority, row_number() OVER (ORDER BY priority DESC, scheduled_for, job_id) AS place
    FROM (
        SELECT seq, priority, scheduled_for, job_id FROM job INDEXED BY job_rate_parked
        WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND rate_parked = 1
          AND queue = ?4 AND job_type = ?5 AND payload_version = ?6
        ORDER BY priority DESC, scheduled_for, job_id
        LIMIT ?7)
), level AS MATERIALIZED (
    SELECT priority, (
        SELECT count(*) FROM (
            SELECT 1 FROM job INDEXED BY job_rate
            WHERE status = 'pending' AND parked = 0 AND rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3
              AND queue = ?4 AND job_type = ?5 AND payload_version = ?6 AND priority >= levels.priority
            LIMIT ?7)) AS before
    FROM (SELECT DISTINCT priority FROM next) AS levels
)
UPDATE job SET parked = 0, rate_parked = 0
WHERE seq IN (SELECT seq FROM next JOIN level ON level.priority = next.priority WHERE place + before <= ?7)

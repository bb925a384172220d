-- Put parked jobs of a key, queue, type and version back in sight, in claim order: each that is among the first ?5 of
-- those parked and those in sight. What is in sight and less urgent keeps nobody out. Indexes: job_parked, job_key.
WITH next AS MATERIALIZED (
    SELECT seq, priority, row_number() OVER (ORDER BY priority DESC, scheduled_for, job_id) AS place
    FROM (
        SELECT seq, priority, scheduled_for, job_id FROM job INDEXED BY job_parked
        WHERE concurrency_key = ?1 AND queue = ?2 AND job_type = ?3 AND payload_version = ?4
          AND parked = 1 AND rate_parked = 0
        ORDER BY priority DESC, scheduled_for, job_id
        LIMIT ?5)
), level AS MATERIALIZED (
    SELECT priority, (
        SELECT count(*) FROM (
            SELECT 1 FROM job INDEXED BY job_key
            WHERE concurrency_key = ?1 AND status = 'pending' AND queue = ?2 AND job_type = ?3
              AND payload_version = ?4 AND parked = 0 AND priority >= levels.priority
            LIMIT ?5)) AS before
    FROM (SELECT DISTINCT priority FROM next) AS levels
)
UPDATE job SET parked = 0
WHERE seq IN (SELECT seq FROM next JOIN level ON level.priority = next.priority WHERE place + before <= ?5)

-- Put the next parked jobs of a rate key, queue, type and version back in sight, in claim order.
-- Index: job_rate_parked.
UPDATE job SET parked = 0, rate_parked = 0
WHERE seq IN (
    SELECT seq FROM job INDEXED BY job_rate_parked
    WHERE rate_key = ?1 AND rate_parked = 1 AND queue = ?2 AND job_type = ?3 AND payload_version = ?4
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?5)

-- How many pending jobs of a rate key and rate, queue, type and version are in sight and no less urgent than ?7, up to
-- ?8. Index: job_rate.
SELECT count(*) FROM (
    SELECT 1 FROM job INDEXED BY job_rate
    WHERE status = 'pending' AND parked = 0 AND rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3
      AND queue = ?4 AND job_type = ?5 AND payload_version = ?6 AND priority >= ?7
    LIMIT ?8)

-- How many pending jobs of a concurrency key, queue, type and version are in sight and no less urgent than ?5, up to
-- ?6. Index: job_key.
SELECT count(*) FROM (
    SELECT 1 FROM job INDEXED BY job_key
    WHERE concurrency_key = ?1 AND status = 'pending' AND queue = ?2 AND job_type = ?3 AND payload_version = ?4
      AND parked = 0 AND priority >= ?5
    LIMIT ?6)

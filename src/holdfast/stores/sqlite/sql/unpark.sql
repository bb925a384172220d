-- Put the next parked jobs of a key, queue, type and version back in sight, in claim order. Index: job_parked.
UPDATE job SET parked = 0
WHERE seq IN (
    SELECT seq FROM job INDEXED BY job_parked
    WHERE concurrency_key = ?1 AND queue = ?2 AND job_type = ?3 AND payload_version = ?4
      AND parked = 1 AND rate_parked = 0
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?5)

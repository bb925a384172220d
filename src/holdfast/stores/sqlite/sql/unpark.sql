-- Put the next parked jobs of a key, queue and type back in sight, in claim order. Index: job_key.
UPDATE job SET parked = 0
WHERE seq IN (
    SELECT seq FROM job INDEXED BY job_key
    WHERE concurrency_key = ?1 AND status = 'pending' AND queue = ?2 AND job_type = ?3 AND parked = 1
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?4)

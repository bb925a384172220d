-- How many pending jobs of a queue and type come before one without a fairness key: of the first ?6 in sight, those that
-- a claim takes before it. Index: job_ready.
SELECT count(*)
FROM (
    SELECT priority, scheduled_for, job_id
    FROM job INDEXED BY job_ready
    WHERE status = 'pending' AND fairness_key IS NULL AND queue = ?1 AND job_type = ?2 AND parked = 0
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT ?6
)
WHERE (-priority, scheduled_for, job_id) < (-?3, ?4, ?5)

-- The fairness keys beyond ?5 that have jobs waiting at one priority of a version that is read, with a job's weight:
-- one seek of job_fair for each key, however many jobs it has.
WITH RECURSIVE each (key) AS (
    SELECT * FROM (
        SELECT fairness_key FROM job INDEXED BY job_fair
        WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = ?1 AND job_type = ?2 AND parked = 0
          AND priority = ?3 AND fairness_key > ?5 AND payload_version <= ?6
        ORDER BY fairness_key LIMIT 1)
    UNION ALL
    SELECT (
        SELECT fairness_key FROM job INDEXED BY job_fair
        WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = ?1 AND job_type = ?2 AND parked = 0
          AND priority = ?3 AND fairness_key > each.key AND payload_version <= ?6
        ORDER BY fairness_key LIMIT 1)
    FROM each
    WHERE each.key IS NOT NULL
    LIMIT ?4
)
SELECT key, (
    SELECT fairness_weight FROM job INDEXED BY job_fair
    WHERE status = 'pending' AND fairness_key = each.key AND queue = ?1 AND job_type = ?2 AND parked = 0
      AND priority = ?3 AND payload_version <= ?6
    ORDER BY scheduled_for, job_id LIMIT 1),
    coalesce((SELECT position FROM fair_key WHERE queue = ?1 AND job_type = ?2 AND fairness_key = each.key), 0)
FROM each
WHERE key IS NOT NULL

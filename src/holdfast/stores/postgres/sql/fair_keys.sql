-- The fairness keys beyond $5 that have jobs waiting at one priority of a version that is read, with a job's weight and
-- how far each key has come: one seek of job_fair for each key, however many jobs it has.
WITH RECURSIVE each (key) AS (
    (SELECT fairness_key FROM holdfast.job
     WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = $1 AND job_type = $2 AND NOT parked
       AND priority = $3 AND fairness_key > $5 AND payload_version <= $6
     ORDER BY fairness_key LIMIT 1)
    UNION ALL
    SELECT (SELECT fairness_key FROM holdfast.job
        WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = $1 AND job_type = $2 AND NOT parked
          AND priority = $3 AND fairness_key > each.key AND payload_version <= $6
        ORDER BY fairness_key LIMIT 1)
    FROM each WHERE each.key IS NOT NULL
)
SELECT key, (
    SELECT fairness_weight FROM holdfast.job
    WHERE status = 'pending' AND fairness_key = each.key AND queue = $1 AND job_type = $2 AND NOT parked
      AND priority = $3 AND payload_version <= $6
    ORDER BY scheduled_for, job_id LIMIT 1) AS weight,
    coalesce((SELECT position FROM holdfast.fair_key AS k
        WHERE k.queue = $1 AND k.job_type = $2 AND k.fairness_key = each.key), 0) AS position
FROM each
WHERE key IS NOT NULL
LIMIT $4

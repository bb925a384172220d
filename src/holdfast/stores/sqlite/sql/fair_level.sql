-- The highest priority below ?3 at which jobs with a fairness key wait, or without one. Indexes: job_fair, job_ready.
SELECT max(
    coalesce((SELECT priority FROM job INDEXED BY job_fair
     WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = ?1 AND job_type = ?2 AND parked = 0
       AND priority < ?3
     ORDER BY priority DESC LIMIT 1), -1),
    coalesce((SELECT priority FROM job INDEXED BY job_ready
     WHERE status = 'pending' AND fairness_key IS NULL AND queue = ?1 AND job_type = ?2 AND parked = 0
       AND priority < ?3
     ORDER BY priority DESC LIMIT 1), -1))

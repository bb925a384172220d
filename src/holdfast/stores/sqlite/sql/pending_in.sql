-- How many jobs wait in a queue, up to ?2. Indexes: job_ready, job_fair.
SELECT count(*) FROM (
    SELECT * FROM (
        SELECT 1 FROM job INDEXED BY job_ready
        WHERE status = 'pending' AND fairness_key IS NULL AND queue = ?1 LIMIT ?2)
    UNION ALL
    SELECT * FROM (
        SELECT 1 FROM job INDEXED BY job_fair
        WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = ?1 LIMIT ?2))

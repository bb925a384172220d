-- The counters of a span. Served by the primary key.
SELECT minute, job_type, queue, priority, outcome, count, ran_micros, waited_micros
FROM counter
WHERE minute >= ?1 AND minute < ?2
ORDER BY minute

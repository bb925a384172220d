-- A page of counters after (?1, ?2, ?3, ?4, ?5). Index: the primary key.
SELECT minute, job_type, queue, priority, outcome, count, ran_micros, waited_micros FROM counter
WHERE (minute, job_type, queue, priority, outcome) > (?1, ?2, ?3, ?4, ?5)
ORDER BY minute, job_type, queue, priority, outcome LIMIT ?6

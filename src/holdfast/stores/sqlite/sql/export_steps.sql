-- A page of recorded steps after (?1, ?2). Index: the primary key.
SELECT job_id, name, answer, attempt, recorded_at FROM step WHERE (job_id, name) > (?1, ?2) ORDER BY job_id, name LIMIT ?3

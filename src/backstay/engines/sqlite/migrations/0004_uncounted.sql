-- Submits that are not in `counter` yet: those of jobs after meta's `counted_through`.

INSERT INTO meta (name, value) SELECT 'counted_through', coalesce(max(seq), 0) FROM job;

CREATE VIEW uncounted (seq, minute, job_type, queue, priority, outcome, bucket, count, ran_micros, waited_micros) AS
SELECT seq, created_at - created_at % 60000000, job_type, queue, priority, 'submitted', 0, 1, 0, 0
FROM job
WHERE seq > (SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'counted_through');

-- name: count
-- Add to the counters of a minute; one row per kind, outcome and bucket of a batch.
INSERT INTO counter (minute, job_type, queue, priority, outcome, bucket, count, ran_micros, waited_micros)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT DO UPDATE SET count = count + excluded.count, ran_micros = ran_micros + excluded.ran_micros,
    waited_micros = waited_micros + excluded.waited_micros

-- name: last_seq
-- The position of the job that arrived last. Index: the key.
SELECT max(seq) FROM job

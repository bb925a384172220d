-- Sums as they were. Index: the primary key.
INSERT INTO holdfast.counter_sum (job_type, queue, outcome, bucket, count, ran_micros, waited_micros)
VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING

-- Counters as they were, in one shard: they are not added to any more. Index: the primary key.
INSERT INTO holdfast.counter (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros, waited_micros)
VALUES ($1, $2, $3, $4, $5, 0, $6, $7, $8, $9) ON CONFLICT DO NOTHING

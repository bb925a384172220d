-- Add the minutes of [$1, $2) to the sums. Index: the primary key.
INSERT INTO holdfast.counter_sum AS s (job_type, queue, outcome, bucket, count, ran_micros, waited_micros)
SELECT job_type, queue, outcome, bucket, sum(count), sum(ran_micros), sum(waited_micros)
FROM holdfast.counter
WHERE minute >= $1 AND minute < $2
GROUP BY job_type, queue, outcome, bucket
ON CONFLICT (job_type, queue, outcome, bucket) DO UPDATE SET count = s.count + excluded.count,
    ran_micros = s.ran_micros + excluded.ran_micros, waited_micros = s.waited_micros + excluded.waited_micros

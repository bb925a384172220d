-- Add the minutes of [?1, ?2) to the sums. Index: the primary key.
INSERT INTO counter_sum (job_type, queue, outcome, bucket, count, ran_micros, waited_micros)
SELECT job_type, queue, outcome, bucket, sum(count), sum(ran_micros), sum(waited_micros)
FROM counter
WHERE minute >= ?1 AND minute < ?2
GROUP BY job_type, queue, outcome, bucket
ON CONFLICT DO UPDATE SET count = count + excluded.count, ran_micros = ran_micros + excluded.ran_micros,
    waited_micros = waited_micros + excluded.waited_micros

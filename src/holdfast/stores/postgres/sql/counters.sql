-- The counters of a span, all shards together. Index: the primary key.
SELECT minute, job_type, queue, priority, outcome, sum(count)::bigint, sum(ran_micros)::bigint, sum(waited_micros)::bigint
FROM holdfast.counter
WHERE minute >= $1 AND minute < $2
GROUP BY minute, job_type, queue, priority, outcome
ORDER BY minute

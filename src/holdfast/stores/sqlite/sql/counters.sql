-- The counters of a span, all buckets together, and how many are in each. Served by the primary key.
SELECT minute, job_type, queue, priority, outcome, sum(count), sum(ran_micros), sum(waited_micros),
    json_group_array(json_array(bucket, count)) FILTER (WHERE bucket <> 0)
FROM counter
WHERE minute >= ?1 AND minute < ?2
GROUP BY minute, job_type, queue, priority, outcome
ORDER BY minute, job_type, queue, priority, outcome

-- A page of sums after (?1, ?2, ?3), all buckets together. Index: the primary key.
SELECT job_type, queue, outcome, sum(count), sum(ran_micros), sum(waited_micros),
    json_group_array(json_array(bucket, count)) FILTER (WHERE bucket <> 0)
FROM counter_sum
WHERE (job_type, queue, outcome) > (?1, ?2, ?3)
GROUP BY job_type, queue, outcome
ORDER BY job_type, queue, outcome LIMIT ?4

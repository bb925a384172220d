-- A page of counters after (?1, ?2, ?3, ?4, ?5), all buckets together. Index: the primary key.
SELECT minute, job_type, queue, priority, outcome, sum(count), sum(ran_micros), sum(waited_micros),
    json_group_array(json_array(bucket, count)) FILTER (WHERE bucket <> 0)
FROM counter
WHERE (minute, job_type, queue, priority, outcome) > (?1, ?2, ?3, ?4, ?5)
GROUP BY minute, job_type, queue, priority, outcome
ORDER BY minute, job_type, queue, priority, outcome LIMIT ?6

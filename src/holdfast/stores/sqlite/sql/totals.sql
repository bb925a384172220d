-- Everything that was ever counted: the sums, and the minutes that are not in them yet. Index: the primary keys.
SELECT job_type, queue, outcome, sum(jobs), sum(ran), sum(waited),
    json_group_array(json_array(bucket, jobs)) FILTER (WHERE bucket <> 0)
FROM (
    SELECT job_type, queue, outcome, bucket, sum(count) AS jobs, sum(ran_micros) AS ran, sum(waited_micros) AS waited
    FROM (
        SELECT job_type, queue, outcome, bucket, count, ran_micros, waited_micros FROM counter_sum
        UNION ALL
        SELECT job_type, queue, outcome, bucket, count, ran_micros, waited_micros FROM counter WHERE minute >= ?1
    )
    GROUP BY job_type, queue, outcome, bucket
)
GROUP BY job_type, queue, outcome
ORDER BY job_type, queue, outcome

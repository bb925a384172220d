-- Everything that was ever counted: the sums, and the minutes that are not in them yet. Index: the primary keys.
SELECT job_type, queue, outcome, sum(jobs)::bigint, sum(ran)::bigint, sum(waited)::bigint,
    json_agg(json_build_array(bucket, jobs)) FILTER (WHERE bucket <> 0)::text
FROM (
    SELECT job_type, queue, outcome, bucket, sum(count) AS jobs, sum(ran_micros) AS ran, sum(waited_micros) AS waited
    FROM (
        SELECT job_type, queue, outcome, bucket, count, ran_micros, waited_micros FROM holdfast.counter_sum
        UNION ALL
        SELECT job_type, queue, outcome, bucket, count, ran_micros, waited_micros FROM holdfast.counter
        WHERE minute >= coalesce((SELECT until FROM holdfast.summed), 0)
    ) AS counted
    GROUP BY job_type, queue, outcome, bucket
) AS each
GROUP BY job_type, queue, outcome
ORDER BY job_type, queue, outcome

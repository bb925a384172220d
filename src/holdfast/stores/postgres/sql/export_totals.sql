-- A page of sums after ($1, $2, $3), all buckets together, and how far they go. Index: the primary key.
SELECT job_type, queue, outcome, sum(count)::bigint, sum(ran_micros)::bigint, sum(waited_micros)::bigint,
    json_agg(json_build_array(bucket, count)) FILTER (WHERE bucket <> 0)::text,
    (SELECT until FROM holdfast.summed)
FROM holdfast.counter_sum
WHERE (job_type, queue, outcome) > ($1::text, $2::text, $3::text)
GROUP BY job_type, queue, outcome
ORDER BY job_type, queue, outcome LIMIT $4

-- A page of counters after ($1, $2, $3, $4, $5), all shards and buckets together. Index: the primary key.
SELECT minute, job_type, queue, priority, outcome, sum(jobs)::bigint, sum(ran)::bigint, sum(waited)::bigint,
    json_agg(json_build_array(bucket, jobs)) FILTER (WHERE bucket <> 0)::text
FROM (
    SELECT minute, job_type, queue, priority, outcome, bucket, sum(count) AS jobs, sum(ran_micros) AS ran,
        sum(waited_micros) AS waited
    FROM holdfast.counter
    WHERE (minute, job_type, queue, priority, outcome) > ($1::bigint, $2::text, $3::text, $4::integer, $5::text)
    GROUP BY minute, job_type, queue, priority, outcome, bucket
) AS each
GROUP BY minute, job_type, queue, priority, outcome
ORDER BY minute, job_type, queue, priority, outcome LIMIT $6

-- The counters of a span, all shards and buckets together, and how many are in each bucket. Index: the primary key.
SELECT minute, job_type, queue, priority, outcome, sum(jobs)::bigint, sum(ran)::bigint, sum(waited)::bigint,
    json_agg(json_build_array(bucket, jobs)) FILTER (WHERE bucket <> 0)::text
FROM (
    SELECT minute, job_type, queue, priority, outcome, bucket, sum(count) AS jobs, sum(ran_micros) AS ran,
        sum(waited_micros) AS waited
    FROM holdfast.counter
    WHERE minute >= $1 AND minute < $2
    GROUP BY minute, job_type, queue, priority, outcome, bucket
) AS each
GROUP BY minute, job_type, queue, priority, outcome
ORDER BY minute, job_type, queue, priority, outcome

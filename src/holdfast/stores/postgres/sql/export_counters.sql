-- A page of counters after ($1, $2, $3, $4, $5), all shards together. Index: the primary key.
SELECT minute, job_type, queue, priority, outcome, sum(count)::bigint, sum(ran_micros)::bigint, sum(waited_micros)::bigint
FROM holdfast.counter
WHERE (minute, job_type, queue, priority, outcome) > ($1::bigint, $2::text, $3::text, $4::integer, $5::text)
GROUP BY minute, job_type, queue, priority, outcome
ORDER BY minute, job_type, queue, priority, outcome LIMIT $6

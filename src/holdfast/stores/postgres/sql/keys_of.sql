-- The keys of jobs: whether any of them is or was waited for, their concurrency keys with limits, and the rate keys of
-- those in $2, which have left the line.
SELECT bool_or(awaited),
    (SELECT json_object_agg(key, key_limit)::text FROM (
        SELECT concurrency_key AS key, max(concurrency_limit) AS key_limit FROM holdfast.job
        WHERE job_id = ANY ($1::uuid[]) AND concurrency_key IS NOT NULL AND concurrency_limit IS NOT NULL
        GROUP BY concurrency_key) AS keys),
    array_agg(DISTINCT rate_key) FILTER (WHERE rate_key IS NOT NULL AND job_id = ANY ($2::uuid[]))
FROM holdfast.job WHERE job_id = ANY ($1::uuid[])

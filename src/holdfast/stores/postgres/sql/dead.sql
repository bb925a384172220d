-- Dead letters by type and error, the largest group first, each with its newest. Index: job_state.
SELECT job_type, kind, count(*), (array_agg(job_id::text ORDER BY completed_at DESC))[1],
    (array_agg(coalesce(last_error, '') ORDER BY completed_at DESC))[1], max(completed_at)
FROM (
    SELECT job_type, job_id, last_error, completed_at,
        CASE WHEN last_error LIKE 'ChildFailed: %' THEN 'ChildFailed'
            ELSE coalesce(errors::json -> -1 ->> 'type', 'DependencyFailed') END AS kind
    FROM holdfast.job WHERE status = 'failed'
) AS failed
GROUP BY job_type, kind
ORDER BY 3 DESC, 1, 2
LIMIT $1

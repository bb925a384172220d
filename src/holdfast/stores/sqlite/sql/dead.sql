-- Dead letters by type and error, the largest group first; max() picks the newest row of each. Index: job_ended_badly.
SELECT job_type,
    CASE WHEN last_error LIKE 'ChildFailed: %' THEN 'ChildFailed'
        ELSE coalesce(errors ->> '$[#-1].type', 'DependencyFailed') END,
    count(*), job_id, coalesce(last_error, ''), max(completed_at)
FROM job INDEXED BY job_ended_badly
WHERE status = 'failed' AND status IN ('failed', 'cancelled')
GROUP BY 1, 2
ORDER BY 3 DESC, 1, 2
LIMIT ?1

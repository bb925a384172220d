-- How many pending jobs of a queue, type, priority and fairness key come before one of them: of the first $6 in sight,
-- those that a claim takes before it. Index: job_fair.
SELECT count(*)
FROM (
    SELECT scheduled_for, job_id FROM holdfast.job
    WHERE status = 'pending' AND fairness_key = $7 AND queue = $1 AND job_type = $2 AND NOT parked AND priority = $3
    ORDER BY scheduled_for, job_id
    LIMIT $6
) AS in_sight
WHERE (scheduled_for, job_id) < ($4::bigint, $5::uuid)

-- How many pending jobs of a queue and type come before one without a fairness key: of the first $6 in sight, those that
-- a claim takes before it. Indexes: job_ready, job_keyed.
SELECT least($6::bigint, count(*))
FROM (
    (SELECT priority, scheduled_for, job_id FROM holdfast.job
     WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
       AND queue = $1 AND job_type = $2
     ORDER BY priority DESC, scheduled_for, job_id
     LIMIT $6)
    UNION ALL
    (SELECT priority, scheduled_for, job_id FROM holdfast.job
     WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
       AND queue = $1 AND job_type = $2 AND NOT parked
     ORDER BY priority DESC, scheduled_for, job_id
     LIMIT $6)
) AS in_sight
WHERE (-priority, scheduled_for, job_id) < (-$3::integer, $4::bigint, $5::uuid)

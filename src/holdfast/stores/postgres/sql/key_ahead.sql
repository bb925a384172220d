-- How many jobs of a concurrency key come before one that it holds back, of its queue, type and version: of the first
-- $8 that are parked, and of those in sight. Indexes: job_parked, job_key.
SELECT count(*)
FROM (
    (SELECT priority, scheduled_for, job_id FROM holdfast.job
     WHERE concurrency_key = $1 AND parked AND NOT rate_parked AND queue = $2 AND job_type = $3 AND payload_version = $4
     ORDER BY priority DESC, scheduled_for, job_id
     LIMIT $8)
    UNION ALL
    (SELECT priority, scheduled_for, job_id FROM holdfast.job
     WHERE concurrency_key = $1 AND status = 'pending' AND queue = $2 AND job_type = $3 AND payload_version = $4
       AND NOT parked AND priority >= $5 AND (-priority, scheduled_for, job_id) < (-$5::integer, $6::bigint, $7::uuid)
     LIMIT $8)
) AS of_key
WHERE (-priority, scheduled_for, job_id) < (-$5::integer, $6::bigint, $7::uuid)

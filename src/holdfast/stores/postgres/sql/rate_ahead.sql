-- How many jobs of a rate key and rate come before one that they hold back, of its queue, type and version: of the
-- first $10 that are parked, and of those in sight. Indexes: job_rate_parked, job_rate.
SELECT count(*)
FROM (
    (SELECT priority, scheduled_for, job_id FROM holdfast.job
     WHERE rate_key = $1 AND rate_count = $2 AND rate_micros = $3 AND rate_parked AND queue = $4 AND job_type = $5
       AND payload_version = $6
     ORDER BY priority DESC, scheduled_for, job_id
     LIMIT $10)
    UNION ALL
    (SELECT priority, scheduled_for, job_id FROM holdfast.job
     WHERE rate_key = $1 AND rate_count = $2 AND rate_micros = $3 AND status = 'pending' AND NOT parked AND queue = $4
       AND job_type = $5 AND payload_version = $6
       AND priority >= $7 AND (-priority, scheduled_for, job_id) < (-$7::integer, $8::bigint, $9::uuid)
     LIMIT $10)
) AS of_key
WHERE (-priority, scheduled_for, job_id) < (-$7::integer, $8::bigint, $9::uuid)

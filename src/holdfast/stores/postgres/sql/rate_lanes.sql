-- The queues, types and versions in which a rate key and rate have parked jobs: one seek of job_rate_parked for each.
WITH RECURSIVE each (queue, job_type, version) AS (
    (SELECT queue, job_type, payload_version FROM holdfast.job
     WHERE rate_key = $1 AND rate_count = $2 AND rate_micros = $3 AND rate_parked
     ORDER BY queue, job_type, payload_version LIMIT 1)
    UNION ALL
    SELECT next.queue, next.job_type, next.payload_version FROM each CROSS JOIN LATERAL (
        SELECT queue, job_type, payload_version FROM holdfast.job
        WHERE rate_key = $1 AND rate_count = $2 AND rate_micros = $3 AND rate_parked
          AND (queue, job_type, payload_version) > (each.queue, each.job_type, each.version)
        ORDER BY queue, job_type, payload_version LIMIT 1) AS next
)
SELECT queue, job_type, version FROM each

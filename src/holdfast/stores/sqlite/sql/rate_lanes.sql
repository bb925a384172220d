-- The queues, types and versions in which a rate key and rate have parked jobs: some seeks of job_rate_parked for each.
WITH RECURSIVE each (queue, job_type, version) AS (
    SELECT * FROM (
        SELECT queue, job_type, payload_version FROM job INDEXED BY job_rate_parked
        WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND rate_parked = 1
        ORDER BY queue, job_type, payload_version LIMIT 1)
    UNION ALL
    SELECT next.queue, next.job_type, next.payload_version FROM each JOIN job AS next ON next.seq = coalesce(
        (SELECT seq FROM job INDEXED BY job_rate_parked
         WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND rate_parked = 1
           AND queue = each.queue AND job_type = each.job_type AND payload_version > each.version
         ORDER BY payload_version LIMIT 1),
        (SELECT seq FROM job INDEXED BY job_rate_parked
         WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND rate_parked = 1
           AND queue = each.queue AND job_type > each.job_type
         ORDER BY job_type, payload_version LIMIT 1),
        (SELECT seq FROM job INDEXED BY job_rate_parked
         WHERE rate_key = ?1 AND rate_count = ?2 AND rate_micros = ?3 AND rate_parked = 1 AND queue > each.queue
         ORDER BY queue, job_type, payload_version LIMIT 1))
)
SELECT queue, job_type, version FROM each

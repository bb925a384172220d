-- How many pending jobs of a rate key, queue, type and version are in sight, up to $5. Index: job_rate.
SELECT count(*) FROM (
    SELECT 1 FROM holdfast.job
    WHERE rate_key = $1 AND status = 'pending' AND NOT parked AND queue = $2 AND job_type = $3 AND payload_version = $4
    LIMIT $5) AS in_sight

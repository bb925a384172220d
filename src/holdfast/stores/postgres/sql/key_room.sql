-- How many jobs of a concurrency key run, and how many pending ones of one queue, type and version are in sight, up to
-- $5. Index: job_key.
SELECT
    (SELECT count(*) FROM holdfast.job WHERE concurrency_key = $1 AND status = 'processing'),
    (SELECT count(*) FROM (
        SELECT 1 FROM holdfast.job
        WHERE concurrency_key = $1 AND status = 'pending' AND queue = $2 AND job_type = $3 AND payload_version = $4
          AND NOT parked
        LIMIT $5) AS in_sight)

-- Make due jobs pending, the longest due first. Index: job_due.
UPDATE job
SET status = 'pending', version = version + 1, updated_at = :now,
    history = CASE version % 64 WHEN 63 THEN trim_history(history) ELSE history END
        || char(10) || '[' || (version + 1) || ',' || :now || ',"due","' || status || '","pending",' || attempt || ']'
WHERE seq IN (
    SELECT seq FROM job INDEXED BY job_due
    WHERE status IN ('scheduled', 'retrying') AND scheduled_for <= :now
    ORDER BY scheduled_for
    LIMIT :limit
) AND +status IN ('scheduled', 'retrying')

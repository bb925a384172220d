-- name: promote
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

-- name: next_due
-- When the next scheduled or retrying job is due. Index: job_due.
SELECT min(scheduled_for) FROM job INDEXED BY job_due WHERE status IN ('scheduled', 'retrying')

-- name: save_schedule
-- Store a schedule whole; :expected is the version to replace, NULL where there must be none yet.
INSERT INTO schedule (name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at, version,
    paused_at, paused_by, last_at, last_job_id)
VALUES (:name, :cron, :timezone, :missed, :job_type, :template, :created_at, :updated_at, :next_at, :version,
    :paused_at, :paused_by, :last_at, :last_job_id)
ON CONFLICT (name) DO UPDATE SET cron = excluded.cron, timezone = excluded.timezone, missed = excluded.missed,
    job_type = excluded.job_type, template = excluded.template, updated_at = excluded.updated_at,
    next_at = excluded.next_at, version = excluded.version, paused_at = excluded.paused_at,
    paused_by = excluded.paused_by
WHERE version = :expected

-- name: fire
-- Move a schedule on past its ticks, if it is still as it was read.
UPDATE schedule
SET next_at = :next_at, last_at = coalesce(:last_at, last_at), last_job_id = coalesce(:last_job_id, last_job_id)
WHERE name = :name AND version = :version AND next_at = :due_at AND paused_at IS NULL

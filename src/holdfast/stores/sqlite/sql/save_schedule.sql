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

-- Store a schedule whole; $15 is the version to replace, NULL where there must be none yet.
INSERT INTO holdfast.schedule AS s (name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at,
    version, paused_at, paused_by, last_at, last_job_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
ON CONFLICT (name) DO UPDATE SET cron = excluded.cron, timezone = excluded.timezone, missed = excluded.missed,
    job_type = excluded.job_type, template = excluded.template, updated_at = excluded.updated_at,
    next_at = excluded.next_at, version = excluded.version, paused_at = excluded.paused_at,
    paused_by = excluded.paused_by
WHERE s.version = $15::integer

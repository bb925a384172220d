-- Schedules as they were. Index: the primary key.
INSERT INTO holdfast.schedule (name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at,
    version, paused_at, paused_by, last_at, last_job_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) ON CONFLICT DO NOTHING

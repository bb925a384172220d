-- The schedules of these names. Index: the primary key.
SELECT name, cron, timezone, missed, job_type, template, created_at, updated_at, next_at, version, paused_at, paused_by,
    last_at, last_job_id
FROM holdfast.schedule WHERE name = ANY ($1::text[]) ORDER BY name COLLATE "C"

-- Move a schedule on past its ticks, if it is still as it was read.
UPDATE holdfast.schedule
SET next_at = $4, last_at = coalesce($5::bigint, last_at), last_job_id = coalesce($6::text, last_job_id)
WHERE name = $1 AND version = $2 AND next_at = $3 AND paused_at IS NULL

-- Move a schedule on past its ticks, if it is still as it was read.
UPDATE schedule
SET next_at = :next_at, last_at = coalesce(:last_at, last_at), last_job_id = coalesce(:last_job_id, last_job_id)
WHERE name = :name AND version = :version AND next_at = :due_at AND paused_at IS NULL

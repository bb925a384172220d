-- Remove a schedule.
DELETE FROM holdfast.schedule WHERE name = $1

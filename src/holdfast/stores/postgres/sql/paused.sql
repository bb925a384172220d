-- Queues that are paused.
SELECT name FROM holdfast.queue WHERE paused_at IS NOT NULL

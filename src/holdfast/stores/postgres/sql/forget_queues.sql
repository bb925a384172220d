-- Queues of which nothing is said any more.
DELETE FROM holdfast.queue WHERE paused_at IS NULL AND max_pending IS NULL

-- Queues of which something was said.
SELECT name, paused_at, paused_by, pause_reason, max_pending FROM holdfast.queue ORDER BY name

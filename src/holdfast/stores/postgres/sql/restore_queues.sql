-- What was said about queues. Index: the primary key.
INSERT INTO holdfast.queue (name, paused_at, paused_by, pause_reason, max_pending) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING

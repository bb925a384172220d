-- Register a worker, or say that it lives.
INSERT INTO holdfast.worker (worker_id, heartbeat_at, details) VALUES ($1, $2, $3)
ON CONFLICT (worker_id) DO UPDATE SET heartbeat_at = excluded.heartbeat_at, details = excluded.details

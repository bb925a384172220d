-- All workers; a heartbeat's time is the server's.
SELECT worker_id, heartbeat_at, details FROM holdfast.worker ORDER BY worker_id

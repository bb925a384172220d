-- All workers; a heartbeat's time is the server's.
SELECT details, heartbeat_at FROM holdfast.worker ORDER BY worker_id

-- Say something about a queue. Pausing what is paused keeps who did it first, and when.
INSERT INTO holdfast.queue AS q (name, paused_at, paused_by, pause_reason, max_pending)
VALUES ($1, CASE WHEN $2 THEN $5::bigint END, CASE WHEN $2 THEN $3 END, CASE WHEN $2 THEN $4 END, nullif($6::integer, 0))
ON CONFLICT (name) DO UPDATE SET
    paused_at = CASE WHEN $2 THEN coalesce(q.paused_at, $5) WHEN NOT $2 THEN NULL ELSE q.paused_at END,
    paused_by = CASE WHEN $2 AND q.paused_at IS NULL THEN $3 WHEN NOT $2 THEN NULL ELSE q.paused_by END,
    pause_reason = CASE WHEN $2 AND q.paused_at IS NULL THEN $4 WHEN NOT $2 THEN NULL ELSE q.pause_reason END,
    max_pending = CASE WHEN $6 IS NULL THEN q.max_pending ELSE nullif($6, 0) END
RETURNING name, paused_at, paused_by, pause_reason, max_pending

-- name: steps
-- The recorded steps of a job, up to ?2. Index: the primary key.
SELECT kind, name, answer, attempt, recorded_at FROM step WHERE job_id = ?1 LIMIT ?2

-- name: event_steps
-- The events that were sent to a job, and how its waits ended. Index: the primary key.
SELECT kind, name, answer, attempt, recorded_at FROM step WHERE job_id = ?1 AND kind IN ('sent', 'event')

-- name: count_sent
-- How many events were sent to a job. Index: the primary key.
SELECT count(*) FROM step WHERE job_id = ?1 AND kind = 'sent'

-- name: knows_sent
-- Whether an event was sent to a job. Index: the primary key.
SELECT EXISTS (SELECT 1 FROM step WHERE job_id = ?1 AND kind = 'sent' AND name = ?2)

-- name: save_sent
-- Record an event that was sent to a job. Index: the primary key.
INSERT INTO step (job_id, kind, name, answer, attempt, recorded_at) VALUES (?1, 'sent', ?2, ?3, ?4, ?5)

-- name: mailbox
-- What is kept of a correlation key. Index: the key.
SELECT content FROM mailbox WHERE event_key = ?1

-- name: save_mailbox
-- Keep the mailbox of a correlation key, until ?3.
INSERT OR REPLACE INTO mailbox (event_key, content, expires_at) VALUES (?1, ?2, ?3)

-- name: drop_mailbox
-- Delete the mailbox of a correlation key. Index: the key.
DELETE FROM mailbox WHERE event_key = ?1

-- name: old_mailboxes
-- The mailboxes that have expired at ?1, up to ?2. Index: mailbox_expires.
SELECT event_key, content FROM mailbox INDEXED BY mailbox_expires WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2

-- name: timed_out
-- Jobs whose wait for an event has timed out at ?1, the longest due first, up to ?2. Index: waiting_wakes.
SELECT j.job_id FROM waiting AS w INDEXED BY waiting_wakes CROSS JOIN job AS j ON j.seq = w.seq
WHERE w.wakes_at IS NOT NULL AND w.wakes_at <= ?1 ORDER BY w.wakes_at LIMIT ?2

-- name: next_timeout
-- When the next wait for an event times out. Index: waiting_wakes.
SELECT min(wakes_at) FROM waiting INDEXED BY waiting_wakes WHERE wakes_at IS NOT NULL

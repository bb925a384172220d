-- name: steps
-- The recorded steps of a job, up to $2. Index: the primary key.
SELECT kind, name, answer, attempt, recorded_at FROM backstay.step WHERE job_id = $1::uuid LIMIT $2

-- name: event_steps
-- The events that were sent to a job, and how its waits ended. Index: the primary key.
SELECT kind, name, answer, attempt, recorded_at FROM backstay.step WHERE job_id = $1::uuid AND kind IN ('sent', 'event')

-- name: count_sent
-- How many events were sent to a job. Index: the primary key.
SELECT count(*) FROM backstay.step WHERE job_id = $1::uuid AND kind = 'sent'

-- name: knows_sent
-- Whether an event was sent to a job. Index: the primary key.
SELECT EXISTS (SELECT FROM backstay.step WHERE job_id = $1::uuid AND kind = 'sent' AND name = $2)

-- name: save_sent
-- Record an event that was sent to a job. Index: the primary key.
INSERT INTO backstay.step (job_id, kind, name, answer, attempt, recorded_at) VALUES ($1::uuid, 'sent', $2, $3, $4, $5)

-- name: mailbox
-- What is kept of a correlation key, whose name is locked. Index: the primary key.
SELECT content FROM backstay.mailbox WHERE event_key = $1

-- name: save_mailbox
-- Keep the mailbox of a correlation key, until $3.
INSERT INTO backstay.mailbox (event_key, content, expires_at) VALUES ($1, $2, $3)
ON CONFLICT (event_key) DO UPDATE SET content = excluded.content, expires_at = excluded.expires_at

-- name: drop_mailbox
-- Delete the mailbox of a correlation key. Index: the primary key.
DELETE FROM backstay.mailbox WHERE event_key = $1

-- name: old_mailboxes
-- The keys whose mailboxes have expired at $1, up to $2. Index: mailbox_expires.
SELECT event_key FROM backstay.mailbox WHERE expires_at <= $1 ORDER BY expires_at LIMIT $2

-- name: statuses_of
-- How jobs stand. Indexes: those of the places.
SELECT id::text, backstay.status_of(id) FROM unnest($1::uuid[]) AS n (id)

-- name: timed_out
-- Jobs whose wait for an event has timed out at $1, the longest due first, up to $2. Index: waiting_wakes.
SELECT job_id::text FROM backstay.waiting WHERE wakes_at <= $1 ORDER BY wakes_at LIMIT $2

-- name: take_event_due
-- Take events that were sent by SQL, in the order in which they were.
DELETE FROM backstay.event_due WHERE place IN (
    SELECT place FROM backstay.event_due ORDER BY place LIMIT $1 FOR UPDATE SKIP LOCKED)
RETURNING place, event_id, name, payload, job_id::text, event_key, sent_by

-- name: next_timeout
-- When the next wait for an event times out. Index: waiting_wakes.
SELECT wakes_at FROM backstay.waiting WHERE wakes_at IS NOT NULL ORDER BY wakes_at LIMIT 1

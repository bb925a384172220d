-- name: totals
-- Everything that was ever counted: the sums, the minutes that are not in them yet, and the submits that are in none. Index: the primary keys.
SELECT job_type, queue, outcome, sum(jobs), sum(ran), sum(waited),
    json_group_array(json_array(bucket, jobs)) FILTER (WHERE bucket <> 0)
FROM (
    SELECT job_type, queue, outcome, bucket, sum(count) AS jobs, sum(ran_micros) AS ran, sum(waited_micros) AS waited
    FROM (
        SELECT job_type, queue, outcome, bucket, count, ran_micros, waited_micros FROM counter_sum
        UNION ALL
        SELECT job_type, queue, outcome, bucket, count, ran_micros, waited_micros FROM counter WHERE minute >= ?1
        UNION ALL
        SELECT job_type, queue, outcome, bucket, count, ran_micros, waited_micros FROM uncounted
    )
    GROUP BY job_type, queue, outcome, bucket
)
GROUP BY job_type, queue, outcome
ORDER BY job_type, queue, outcome

-- name: sum_counters
-- Add the minutes of [?1, ?2) to the sums. Index: the primary key.
INSERT INTO counter_sum (job_type, queue, outcome, bucket, count, ran_micros, waited_micros)
SELECT job_type, queue, outcome, bucket, sum(count), sum(ran_micros), sum(waited_micros)
FROM counter
WHERE minute >= ?1 AND minute < ?2
GROUP BY job_type, queue, outcome, bucket
ON CONFLICT DO UPDATE SET count = count + excluded.count, ran_micros = ran_micros + excluded.ran_micros,
    waited_micros = waited_micros + excluded.waited_micros

-- name: save_key
-- Store a key whole, in place of one of its id; where it is to be new, only if there is none.
INSERT INTO api_key (key_id, name, secret_hash, scopes, queues, created_at, created_by, expires_at, revoked_at,
    revoked_by, of)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (key_id) DO UPDATE SET name = excluded.name, secret_hash = excluded.secret_hash, scopes = excluded.scopes,
    queues = excluded.queues, created_at = excluded.created_at, created_by = excluded.created_by,
    expires_at = excluded.expires_at, revoked_at = excluded.revoked_at, revoked_by = excluded.revoked_by,
    of = excluded.of
WHERE NOT ?12

-- name: keys
-- Every key, by id.
SELECT key_id, name, secret_hash, scopes, queues, created_at, created_by, expires_at, revoked_at, revoked_by, of
FROM api_key
ORDER BY key_id

-- name: keys_named
-- Keys whose ids are in the JSON array ?1. Index: the primary key.
SELECT key_id, name, secret_hash, scopes, queues, created_at, created_by, expires_at, revoked_at, revoked_by, of
FROM api_key
WHERE key_id IN (SELECT value FROM json_each(?1))
ORDER BY key_id

-- name: audit
-- Store an entry, in place of one of its id.
INSERT OR REPLACE INTO audit (entry_id, at, by, via, action, target, before, after, outcome, remote)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)

-- name: audited
-- The trail before the entry ?1, newest first. Index: the primary key.
SELECT entry_id, at, by, via, action, target, before, after, outcome, remote
FROM audit
WHERE entry_id < ?1
ORDER BY entry_id DESC LIMIT ?2

-- name: oldest_minute
-- The first minute from ?1 on that has counters, or of a submit that is not in them yet. Index: the key.
SELECT min(minute)
FROM (SELECT min(minute) AS minute FROM counter WHERE minute >= ?1 UNION ALL SELECT min(minute) FROM uncounted)

-- name: has_minutes_before
-- Whether there are counters of minutes before ?1. Index: the key.
SELECT EXISTS (SELECT 1 FROM counter WHERE minute < ?1)

-- name: drop_minutes
-- Delete the counters of minutes before ?1, which are in the sums. Index: the key.
DELETE FROM counter WHERE minute < ?1

-- name: meta
-- What the file itself keeps under a name. Index: the key.
SELECT value FROM meta WHERE name = ?1

-- name: save_meta
-- Keep something under a name. Index: the key.
INSERT OR REPLACE INTO meta (name, value) VALUES (?1, ?2)

-- name: drop_key
-- Delete a key. Index: the key.
DELETE FROM api_key WHERE key_id = ?1

-- name: has_entries_before
-- Whether the audit trail has entries before ?1. Index: the key.
SELECT EXISTS (SELECT 1 FROM audit WHERE entry_id < ?1)

-- name: drop_entries
-- Delete the oldest entries of the audit trail before ?1, up to ?2. Index: the key.
DELETE FROM audit WHERE entry_id IN (SELECT entry_id FROM audit WHERE entry_id < ?1 ORDER BY entry_id LIMIT ?2)

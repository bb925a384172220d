-- name: save_key
-- Store a key whole, in place of one of its id; where it is to be new ($12), only if there is none.
INSERT INTO backstay.api_key (key_id, name, secret_hash, scopes, queues, created_at, created_by, expires_at, revoked_at,
    revoked_by, of)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (key_id) DO UPDATE SET name = excluded.name, secret_hash = excluded.secret_hash, scopes = excluded.scopes,
    queues = excluded.queues, created_at = excluded.created_at, created_by = excluded.created_by,
    expires_at = excluded.expires_at, revoked_at = excluded.revoked_at, revoked_by = excluded.revoked_by,
    of = excluded.of
WHERE NOT $12::boolean

-- name: keys
-- Every key, by id.
SELECT key_id, name, secret_hash, scopes, queues, created_at, created_by, expires_at, revoked_at, revoked_by, of
FROM backstay.api_key
ORDER BY key_id

-- name: keys_named
-- Keys of these ids, by id. Index: the primary key.
SELECT key_id, name, secret_hash, scopes, queues, created_at, created_by, expires_at, revoked_at, revoked_by, of
FROM backstay.api_key
WHERE key_id = ANY ($1::text[])
ORDER BY key_id

-- name: drop_keys
-- Forget keys. Index: the primary key.
DELETE FROM backstay.api_key WHERE key_id = ANY ($1::text[])

-- name: audit
-- Store an entry, in place of one of its id.
INSERT INTO backstay.audit (entry_id, at, by, via, action, target, before, after, outcome, remote)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (entry_id) DO UPDATE SET at = excluded.at, by = excluded.by, via = excluded.via, action = excluded.action,
    target = excluded.target, before = excluded.before, after = excluded.after, outcome = excluded.outcome,
    remote = excluded.remote

-- name: audited
-- The trail before the entry $1, newest first. Index: the primary key.
SELECT entry_id, at, by, via, action, target, before, after, outcome, remote
FROM backstay.audit
WHERE entry_id < $1::text
ORDER BY entry_id DESC LIMIT $2

-- name: audit_drop
-- Entries before $1, which are over their time. Index: the primary key.
DELETE FROM backstay.audit
WHERE entry_id IN (SELECT entry_id FROM backstay.audit WHERE entry_id < $1::text ORDER BY entry_id LIMIT $2)

-- name: totals
-- Everything that was ever counted: the sums, and the minutes that are not in them yet. Index: the primary keys.
SELECT job_type, queue, outcome, sum(jobs)::bigint, sum(ran)::bigint, sum(waited)::bigint,
    json_agg(json_build_array(bucket, jobs)) FILTER (WHERE bucket <> 0)::text
FROM (
    SELECT job_type, queue, outcome, bucket, sum(count) AS jobs, sum(ran_micros) AS ran, sum(waited_micros) AS waited
    FROM (
        SELECT job_type, queue, outcome, bucket, count, ran_micros, waited_micros FROM backstay.counter_sum
        UNION ALL
        SELECT job_type, queue, outcome, bucket, count, ran_micros, waited_micros FROM backstay.counted
        WHERE minute >= coalesce((SELECT until FROM backstay.summed), 0)
    ) AS counted
    GROUP BY job_type, queue, outcome, bucket
) AS each
GROUP BY job_type, queue, outcome
ORDER BY job_type, queue, outcome

-- name: sum_counters
-- Add the minutes of [$1, $2) to the sums. Index: the primary key.
INSERT INTO backstay.counter_sum AS s (job_type, queue, outcome, bucket, count, ran_micros, waited_micros)
SELECT job_type, queue, outcome, bucket, sum(count), sum(ran_micros), sum(waited_micros)
FROM backstay.counter
WHERE minute >= $1 AND minute < $2
GROUP BY job_type, queue, outcome, bucket
ON CONFLICT (job_type, queue, outcome, bucket) DO UPDATE SET count = s.count + excluded.count,
    ran_micros = s.ran_micros + excluded.ran_micros, waited_micros = s.waited_micros + excluded.waited_micros

-- name: counters_drop
-- Counters that are over their time.
DELETE FROM backstay.counter WHERE minute < $1

-- name: tally_drop
-- Kinds and states of which there are no jobs any more. Reads all of `tally`, which has a row for each.
DELETE FROM backstay.tally WHERE shard = -1 AND count = 0

-- name: summed_save
-- Remember how far the sums go.
INSERT INTO backstay.summed (until) VALUES ($1) ON CONFLICT (only_one) DO UPDATE SET until = excluded.until

-- name: summed
-- What came before this is in the sums; and the first minute after it that has something. Index: the primary key.
SELECT until, (SELECT min(minute) FROM backstay.counted WHERE minute >= until)
FROM (SELECT coalesce((SELECT until FROM backstay.summed), 0) AS until) AS so_far

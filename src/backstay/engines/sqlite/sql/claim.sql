-- name: candidates
-- The head of one queue and type, in claim order, as one JSON value: a row per step would cost a GIL hand-over each.
-- None while the queue is paused; NULL where jobs with a fairness key wait (index job_fair): then the lane takes turns.
-- Index: job_ready, named because without statistics the planner prefers another and sorts every pending row.
SELECT CASE
WHEN EXISTS (SELECT 1 FROM queue WHERE name = ?1 AND paused_at IS NOT NULL) THEN '[]'
WHEN NOT EXISTS (
    SELECT 1 FROM job INDEXED BY job_fair
    WHERE status = 'pending' AND fairness_key IS NOT NULL AND queue = ?1 AND job_type = ?2 AND parked = 0)
THEN (
    SELECT json_group_array(json_array(
        priority, scheduled_for, job_id, seq, concurrency_key, concurrency_limit, rate_key, rate_count, rate_micros))
    FROM (
        SELECT priority, scheduled_for, job_id, seq, concurrency_key, concurrency_limit,
            rate_key, rate_count, rate_micros
        FROM job INDEXED BY job_ready
        WHERE status = 'pending' AND fairness_key IS NULL AND queue = ?1 AND job_type = ?2 AND parked = 0
          AND payload_version <= ?4
        ORDER BY priority DESC, scheduled_for, job_id
        LIMIT ?3
    ))
END

-- name: claim
-- Take the jobs in :seqs, which this transaction has just read as pending.
UPDATE job
SET status = 'processing', attempt = attempt + 1, version = version + 1, claim_token = :token, worker_id = :worker_id,
    worker_version = :worker_version, lease_expires_at = :lease, started_at = :now, updated_at = :now,
    progress = 0, stage = '',
    history = CASE version % 64 WHEN 63 THEN trim_history(history) ELSE history END
        || char(10) || '[' || (version + 1) || :event_head || (attempt + 1) || :event_tail
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND +status = 'pending'

-- name: claimed
-- What a worker needs of the jobs in ?1, as one JSON value in the order of ClaimedJob's fields.
SELECT json_group_array(json_array(
    {claimed_columns},
    CASE WHEN substr(last_error, 1, 10) = 'LeaseLost:' THEN json_extract(errors, '$[#-1].at') END))
FROM job
WHERE seq IN (SELECT value FROM json_each(?1))

-- name: claimed_before
-- What an earlier try of the same claim request took and still holds. Index: job_lease; only processing rows.
SELECT json_group_array(seq)
FROM job INDEXED BY job_lease
WHERE status = 'processing' AND claim_token = :token AND worker_id = :worker_id

-- Take the jobs in :seqs, which this transaction has just read as pending.
UPDATE job
SET status = 'processing', attempt = attempt + 1, version = version + 1, claim_token = :token, worker_id = :worker_id,
    worker_version = :worker_version, lease_expires_at = :lease, started_at = :now, updated_at = :now,
    progress = 0, stage = '',
    history = CASE version % 64 WHEN 63 THEN trim_history(history) ELSE history END
        || char(10) || '[' || (version + 1) || :event_head || (attempt + 1) || :event_tail
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND +status = 'pending'

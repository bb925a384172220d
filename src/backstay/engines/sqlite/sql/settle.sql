-- name: staged_stale
-- Parts that were staged by an attempt which is over and did not name them. Index: the keys.
DELETE FROM staged WHERE rowid IN (
    SELECT s.rowid FROM staged AS s
    WHERE NOT EXISTS (SELECT 1 FROM unpack_due AS d WHERE d.job_id = s.job_id AND d.attempt = s.attempt)
      AND NOT EXISTS (
        SELECT 1 FROM job AS j WHERE j.job_id = s.job_id AND +j.status = 'processing' AND j.attempt = s.attempt)
    LIMIT ?1)

-- name: complete
-- Settle completions as one set: those of jobs whose end sets nothing else free, which is nearly all. Each is [job_id, attempt, token, result, worker, parent], and counts with the parent that it names, so that has to be right; served by the unique index on job_id. +status keeps the planner from walking all processing rows once per job.
UPDATE job
SET status = 'completed', version = version + 1, completed_at = :now, updated_at = :now, lease_expires_at = NULL,
    progress = 1, stage = 'complete', result = s.result,
    history = CASE version % 64 WHEN 63 THEN trim_history(history) ELSE history END
        || char(10) || '[' || (version + 1) || :event || s.attempt || ',' || s.worker || ']'
FROM (
    SELECT value ->> 0 AS job_id, value ->> 1 AS attempt, value ->> 2 AS token, value ->> 3 AS result,
        value -> 4 AS worker, value ->> 5 AS parent
    FROM json_each(:batch)
) AS s
WHERE job.job_id = s.job_id AND job.awaited = 0 AND job.concurrency_key IS NULL AND job.parent_job_id IS s.parent
    AND +job.status = 'processing' AND job.attempt = s.attempt AND job.claim_token = s.token

-- name: apply
-- Apply one transition while its guards hold. NULL keeps what is stored. Served by the unique index on job_id.
-- A claim's token outlives its settlement, so that a repeated write is recognised; others' changes clear it.
UPDATE job
SET status = :target,
    version = version + 1,
    updated_at = :now,
    completed_at = CASE WHEN :target IN ('completed', 'failed', 'cancelled') THEN :now END,
    lease_expires_at = CASE WHEN :target = 'processing' THEN lease_expires_at END,
    claim_token = CASE WHEN :token IS NULL AND :target <> 'processing' THEN NULL ELSE claim_token END,
    parked = CASE WHEN :target = 'pending' AND :source = 'pending' THEN parked ELSE 0 END,
    rate_parked = CASE WHEN :target = 'pending' AND :source = 'pending' THEN rate_parked ELSE 0 END,
    priority = coalesce(:priority, priority),
    scheduled_for = coalesce(:scheduled_for, scheduled_for),
    failures = coalesce(:failures, failures),
    snoozes = coalesce(:snoozes, snoozes),
    give_backs = coalesce(:give_backs, give_backs),
    progress = coalesce(:progress, progress),
    stage = coalesce(:stage, stage),
    unmet_dependencies = CASE WHEN :target = 'waiting' THEN coalesce(:unmet, unmet_dependencies) ELSE 0 END,
    awaits = CASE WHEN :target = 'waiting' THEN coalesce(:awaits, CASE :source WHEN 'waiting' THEN awaits END) END,
    waits = coalesce(:waits, waits),
    join_name = CASE WHEN :clear_result OR :awaits IS NOT NULL THEN :join ELSE join_name END,
    result = CASE WHEN :clear_result THEN NULL ELSE coalesce(:result, result) END,
    result_artifact = CASE WHEN :clear_result THEN NULL ELSE coalesce(:result_artifact, result_artifact) END,
    joins = CASE WHEN :clear_result THEN NULL ELSE joins END,
    reused_from = CASE WHEN :clear_result THEN NULL ELSE reused_from END,
    rows_of = CASE WHEN :clear_result THEN NULL ELSE rows_of END,
    rows_attempt = CASE WHEN :clear_result THEN NULL ELSE rows_attempt END,
    logs = coalesce(:logs, logs),
    log_location = coalesce(:log_location, log_location),
    metrics = coalesce(:metrics, metrics),
    artifacts = coalesce(:artifacts, artifacts),
    last_error = coalesce(:last_error, last_error),
    errors = CASE WHEN :error IS NULL THEN errors ELSE (
        SELECT json_group_array(json(value) ORDER BY key) FROM (
            SELECT key, value FROM json_each(json_insert(coalesce(errors, '[]'), '$[#]', json(:error)))
            ORDER BY key DESC LIMIT :errors_kept)) END,
    history = CASE version % 64 WHEN 63 THEN trim_history(history) ELSE history END
        || char(10) || '[' || (version + 1) || :event
WHERE job_id = :job_id
  AND +status = :source
  AND attempt = :attempt
  AND (:version IS NULL OR version = :version)
  AND (:token IS NULL OR claim_token = :token)
  AND (:lease IS NULL OR lease_expires_at = :lease)
RETURNING parent_job_id

-- name: outcomes_of
-- How those stand that ?1 depends on, in the jobs or the archive, and how many of each; identical jobs that it only
-- joined are left out. Index: edge_child.
SELECT coalesce(p.status, a.status, 'completed'), count(*)
FROM edge AS e INDEXED BY edge_child
LEFT JOIN job AS p ON p.job_id = e.parent_id LEFT JOIN archive AS a ON a.job_id = e.parent_id
WHERE e.child_id = ?1 AND e.joined = 0
GROUP BY 1

-- name: unmeet
-- ?1 waits again: of its edges, those to jobs that have not ended count anew, the others count no more. Index: edge_child.
UPDATE edge INDEXED BY edge_child
SET met = NOT EXISTS (SELECT 1 FROM job AS p WHERE p.job_id = edge.parent_id AND p.completed_at IS NULL)
WHERE child_id = ?1 AND joined = 0

-- name: awaited_by
-- Those that ?1 waits on have someone who does: their completion leaves the common path. Index: edge_child.
UPDATE job SET awaited = 1
WHERE job_id IN (SELECT parent_id FROM edge INDEXED BY edge_child WHERE child_id = ?1 AND met = 0) AND awaited = 0

-- name: extend
-- Prolong the claims in :batch, each [job_id, attempt, token].
UPDATE job
SET lease_expires_at = :lease
FROM (
    SELECT value ->> 0 AS job_id, value ->> 1 AS attempt, value ->> 2 AS token FROM json_each(:batch)
) AS s
WHERE job.job_id = s.job_id AND +job.status = 'processing' AND job.attempt = s.attempt AND job.claim_token = s.token

-- name: note
-- Bookkeeping of a running attempt, while its claim holds. NULL keeps what is stored.
UPDATE job
SET progress = coalesce(:progress, progress),
    stage = coalesce(:stage, stage),
    logs = coalesce(:logs, logs),
    log_location = coalesce(:log_location, log_location),
    metrics = coalesce(:metrics, metrics),
    artifacts = coalesce(:artifacts, artifacts),
    updated_at = :now
WHERE job_id = :job_id AND +status = 'processing' AND attempt = :attempt AND claim_token = :token

-- name: record_step
-- Keep a step's answer while the claim holds; the first answer stays.
INSERT INTO step (job_id, name, answer, attempt, recorded_at)
SELECT :job_id, :name, :answer, :attempt, :now
FROM job
WHERE job_id = :job_id AND +status = 'processing' AND attempt = :attempt AND claim_token = :token
ON CONFLICT (job_id, name) DO NOTHING

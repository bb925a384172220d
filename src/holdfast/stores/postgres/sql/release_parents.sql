-- Let jobs go on that have waited for their children, or end them, as each target says. Their time in line begins now.
UPDATE holdfast.job AS j
SET status = n.target, version = j.version + 1, updated_at = $4, awaits = NULL,
    scheduled_for = CASE n.target WHEN 'pending' THEN $4::bigint ELSE j.scheduled_for END,
    completed_at = CASE WHEN n.target IN ('failed', 'cancelled') THEN $4::bigint END,
    stage = CASE n.target WHEN 'failed' THEN 'error' ELSE j.stage END,
    last_error = CASE n.target WHEN 'failed' THEN 'ChildFailed: ' || n.reason ELSE j.last_error END,
    history = holdfast.trimmed(j.history, j.version) || E'\n'
        || holdfast.event(j.version + 1, $4, 'release', 'waiting', n.target, j.attempt, NULL, n.reason)
FROM unnest($1::uuid[], $2::text[], $3::text[]) AS n (job_id, target, reason)
WHERE j.job_id = n.job_id AND (j.status || '') = 'waiting' AND j.awaits IS NOT NULL

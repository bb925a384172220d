-- Move waiting jobs on, or only count down what each waits on (its target is 'waiting' then, and no event is written).
-- One that waits for its children is not moved by what it once depended on.
UPDATE holdfast.job AS j
SET unmet_dependencies = n.unmet,
    status = n.target,
    version = j.version + (n.target <> 'waiting')::integer,
    updated_at = $5,
    completed_at = CASE WHEN n.target IN ('completed', 'failed', 'cancelled') THEN $5::bigint END,
    stage = CASE n.target WHEN 'failed' THEN 'error' WHEN 'completed' THEN 'complete' ELSE j.stage END,
    progress = CASE n.target WHEN 'completed' THEN 1 ELSE j.progress END,
    last_error = CASE n.target WHEN 'failed' THEN 'DependencyFailed: ' || $7::text ELSE j.last_error END,
    reused_from = CASE WHEN j.joins IS NULL THEN j.reused_from WHEN n.target = 'completed' THEN j.joins END,
    joins = CASE WHEN n.target = 'waiting' THEN j.joins END,
    result = CASE n.target WHEN 'completed' THEN d.result END,
    result_artifact = CASE n.target WHEN 'completed' THEN d.result_artifact END,
    metrics = CASE n.target WHEN 'completed' THEN d.metrics ELSE j.metrics END,
    result_tables = CASE n.target WHEN 'completed' THEN d.result_tables ELSE j.result_tables END,
    rows_of = CASE WHEN n.target = 'completed' AND d.result_tables IS NOT NULL THEN coalesce(d.rows_of, d.job_id) END,
    rows_attempt = CASE WHEN n.target = 'completed' AND d.result_tables IS NOT NULL
        THEN coalesce(d.rows_attempt, d.attempt) END,
    history = CASE WHEN n.target = 'waiting' THEN j.history ELSE holdfast.trimmed(j.history, j.version) || E'\n'
        || holdfast.event(j.version + 1, $5, n.event, 'waiting', n.target, j.attempt, NULL,
            CASE n.event WHEN 'reuse' THEN $8::text ELSE $7::text END) END
FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[]) AS n (job_id, unmet, target, event)
LEFT JOIN holdfast.job AS d ON d.job_id = $6::uuid
WHERE j.job_id = n.job_id AND (j.status || '') = 'waiting' AND j.awaits IS NULL

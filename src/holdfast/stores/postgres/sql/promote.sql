-- Make due jobs pending, the longest due first. Index: job_due.
WITH due AS MATERIALIZED (
    SELECT seq FROM holdfast.job
    WHERE status IN ('scheduled', 'retrying') AND scheduled_for <= $1
    ORDER BY scheduled_for
    LIMIT $2
    FOR UPDATE SKIP LOCKED
)
UPDATE holdfast.job AS j
SET status = 'pending', version = j.version + 1, updated_at = $1,
    history = holdfast.trimmed(j.history, j.version) || E'\n'
        || holdfast.event(j.version + 1, $1, 'due', j.status, 'pending', j.attempt, NULL, NULL)
FROM due WHERE j.seq = due.seq AND (j.status || '') IN ('scheduled', 'retrying')

-- Put the next parked jobs of a key, queue, type and version back in sight, in claim order. Index: job_parked.
WITH next AS MATERIALIZED (
    SELECT seq FROM holdfast.job
    WHERE concurrency_key = $1 AND queue = $2 AND job_type = $3 AND payload_version = $4 AND parked AND NOT rate_parked
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT $5
    FOR UPDATE SKIP LOCKED
)
UPDATE holdfast.job AS j SET parked = false FROM next WHERE j.seq = next.seq

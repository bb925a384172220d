-- Put parked jobs of a key, queue, type and version back in sight, in claim order: each that is among the first $5 of
-- those parked and those in sight. What is in sight and less urgent keeps nobody out. Indexes: job_parked, job_key.
WITH next AS MATERIALIZED (
    SELECT seq, priority, scheduled_for, job_id FROM holdfast.job
    WHERE concurrency_key = $1 AND queue = $2 AND job_type = $3 AND payload_version = $4 AND parked AND NOT rate_parked
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT $5
    FOR UPDATE SKIP LOCKED
), placed AS (
    SELECT seq, priority, row_number() OVER (ORDER BY priority DESC, scheduled_for, job_id) AS place FROM next
), level AS MATERIALIZED (
    SELECT priority, (
        SELECT count(*) FROM (
            SELECT 1 FROM holdfast.job AS j
            WHERE j.concurrency_key = $1 AND j.status = 'pending' AND j.queue = $2 AND j.job_type = $3
              AND j.payload_version = $4 AND NOT j.parked AND j.priority >= levels.priority
            LIMIT $5) AS in_sight) AS before
    FROM (SELECT DISTINCT priority FROM next) AS levels
)
UPDATE holdfast.job AS j SET parked = false
WHERE j.seq = ANY (ARRAY(
    SELECT placed.seq FROM placed JOIN level ON level.priority = placed.priority
    WHERE placed.place + level.before <= $5))

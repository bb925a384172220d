-- Put parked jobs of a rate key and rate, queue, type and version back in sight, in claim order: each that is among the
-- first $7 of those parked and those in sight. What is in sight and less urgent keeps nobody out.
-- Indexes: job_rate_parked, job_rate.
WITH next AS MATERIALIZED (
    SELECT seq, priority, scheduled_for, job_id FROM holdfast.job
    WHERE rate_key = $1 AND rate_count = $2 AND rate_micros = $3 AND rate_parked AND queue = $4 AND job_type = $5
      AND payload_version = $6
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT $7
    FOR UPDATE SKIP LOCKED
), placed AS (
    SELECT seq, priority, row_number() OVER (ORDER BY priority DESC, scheduled_for, job_id) AS place FROM next
), level AS MATERIALIZED (
    SELECT priority, (
        SELECT count(*) FROM (
            SELECT 1 FROM holdfast.job AS j
            WHERE j.rate_key = $1 AND j.rate_count = $2 AND j.rate_micros = $3 AND j.status = 'pending'
              AND NOT j.parked AND j.queue = $4 AND j.job_type = $5 AND j.payload_version = $6
              AND j.priority >= levels.priority
            LIMIT $7) AS in_sight) AS before
    FROM (SELECT DISTINCT priority FROM next) AS levels
)
UPDATE holdfast.job AS j SET parked = false, rate_parked = false
WHERE j.seq = ANY (ARRAY(
    SELECT placed.seq FROM placed JOIN level ON level.priority = placed.priority
    WHERE placed.place + level.before <= $7))

-- Take the first plain pending jobs over the asked lanes; none where keyed jobs wait in one of them, because the two
-- kinds are claimed in one order. Index: job_ready, one descent per lane; rows that others hold are passed over. The
-- limit is applied to what was locked, never by joining back to a moving subquery.
WITH asked AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::integer[], $4::integer[]) AS l (queue, job_type, slots, version)
), lane AS MATERIALIZED (
    SELECT * FROM asked
    WHERE queue NOT IN (SELECT name FROM holdfast.queue WHERE paused_at IS NOT NULL)
      AND NOT EXISTS (
        SELECT 1 FROM asked AS l JOIN holdfast.job AS j ON j.queue = l.queue AND j.job_type = l.job_type
        WHERE j.status = 'pending' AND j.fairness_key IS NULL AND NOT j.parked
          AND (j.concurrency_key IS NOT NULL OR j.rate_key IS NOT NULL))
      AND NOT EXISTS (
        SELECT 1 FROM asked AS l JOIN holdfast.job AS j ON j.queue = l.queue AND j.job_type = l.job_type
        WHERE j.status = 'pending' AND j.fairness_key IS NOT NULL AND NOT j.parked)
), head AS MATERIALIZED (
    SELECT h.* FROM lane CROSS JOIN LATERAL (
        SELECT j.ctid AS place_of, j.job_type, j.priority, j.scheduled_for, j.job_id FROM holdfast.job AS j
        WHERE j.status = 'pending' AND j.fairness_key IS NULL AND j.concurrency_key IS NULL AND j.rate_key IS NULL
          AND j.queue = lane.queue AND j.job_type = lane.job_type AND j.payload_version <= lane.version
        ORDER BY j.priority DESC, j.scheduled_for, j.job_id
        LIMIT lane.slots
        FOR UPDATE SKIP LOCKED
    ) AS h
), chosen AS MATERIALIZED (
    SELECT place_of FROM (
        SELECT place_of, priority, scheduled_for, job_id,
            row_number() OVER (PARTITION BY job_type ORDER BY priority DESC, scheduled_for, job_id) AS place,
            job_type
        FROM head
    ) AS ranked
    WHERE place <= (SELECT max(slots) FROM lane WHERE lane.job_type = ranked.job_type)
    ORDER BY priority DESC, scheduled_for, job_id
    LIMIT $5
), moment AS MATERIALIZED (
    -- And what is the same in every row's history: spelt once, not once for each.
    SELECT now, ',' || now || ',"claim","pending","processing",' AS event, ',' || to_json($7::text) || ']' AS by
    FROM (SELECT coalesce($10::bigint, holdfast.micros()) AS now) AS clock
)
UPDATE holdfast.job AS j
SET status = 'processing', attempt = j.attempt + 1, version = j.version + 1, claim_token = $6, worker_id = $7,
    worker_version = $8, lease_expires_at = moment.now + $9::bigint, started_at = moment.now, updated_at = moment.now,
    progress = 0, stage = '',
    history = holdfast.trimmed(j.history, j.version) || E'\n[' || j.version + 1 || moment.event || j.attempt + 1
        || moment.by
FROM chosen, moment
WHERE j.ctid = chosen.place_of
RETURNING j.job_id::text, j.job_type, j.queue, j.priority, j.payload, j.attempt, j.version, j.failures, j.max_attempts,
    j.snoozes, j.give_backs, j.timeout_micros, j.created_at, j.scheduled_for, j.lease_expires_at, j.subject,
    j.parent_job_id::text, j.root_job_id::text, j.logs, j.artifacts, j.tags, j.created_by, j.job_stage, j.dedup_key,
    j.content_hash, j.worker_id, j.started_at, j.payload_version, j.schedule, j.tick_at,
    coalesce(j.waits, 0), j.join_name, coalesce(j.children, 0), j.traceparent,
    CASE WHEN starts_with(j.last_error, 'LeaseLost:') THEN (j.errors::json -> -1 ->> 'at')::bigint END

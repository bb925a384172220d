-- Settle completions as one set: those of jobs whose end sets nothing else free, which is nearly all. Rows are locked in
-- the order of their ids; (status || '') keeps the planner from pairing every processing row with every settlement.
WITH s AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::text[])
        AS s (job_id, attempt, token, result, worker)
), locked AS MATERIALIZED (
    SELECT j.seq, s.result, s.worker FROM holdfast.job AS j JOIN s ON j.job_id = s.job_id
    WHERE (j.status || '') = 'processing' AND j.attempt = s.attempt AND j.claim_token = s.token
      AND NOT j.awaited AND j.concurrency_key IS NULL
    ORDER BY j.job_id
    FOR NO KEY UPDATE OF j
), moment AS MATERIALIZED (
    SELECT coalesce($6::bigint, holdfast.micros()) AS now
), done AS (
    UPDATE holdfast.job AS j
    SET status = 'completed', version = j.version + 1, completed_at = moment.now, updated_at = moment.now,
        lease_expires_at = NULL, progress = 1, stage = 'complete', result = locked.result,
        history = holdfast.trimmed(j.history, j.version) || E'\n' || holdfast.event(
            j.version + 1, moment.now, 'complete', 'processing', 'completed', j.attempt, locked.worker, NULL)
    FROM locked, moment
    WHERE j.seq = locked.seq
    RETURNING j.job_id, j.job_type, j.queue, j.priority, moment.now AS now, moment.now - j.started_at AS ran,
        j.started_at - j.scheduled_for AS waited
), counted AS (
    INSERT INTO holdfast.counter AS c
        (minute, job_type, queue, priority, outcome, shard, count, ran_micros, waited_micros)
    SELECT now - now % 60000000, job_type, queue, priority, 'completed', pg_backend_pid() % 64, count(*), sum(ran),
        sum(waited)
    FROM done
    GROUP BY now, job_type, queue, priority
    ORDER BY job_type, queue, priority
    ON CONFLICT (minute, job_type, queue, priority, outcome, shard) DO UPDATE SET count = c.count + excluded.count,
        ran_micros = c.ran_micros + excluded.ran_micros, waited_micros = c.waited_micros + excluded.waited_micros
)
SELECT job_id::text FROM done

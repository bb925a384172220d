-- name: stage
-- Keep a part of the children of a running attempt, while its claim holds. A repeat replaces it.
INSERT INTO backstay.staged AS s (job_id, attempt, part, jobs)
SELECT job_id, attempt, $4::integer, $5::bytea FROM backstay.job
WHERE job_id = $1::uuid AND (status || '') = 'processing' AND attempt = $2 AND claim_token = $3
ON CONFLICT (job_id, attempt, part) DO UPDATE SET jobs = excluded.jobs

-- name: name_staged
-- Name what an attempt has staged, in its settlement: $3 parts. Others are of a call within it that crashed. Answers how
-- many of them are there.
WITH dropped AS (
    DELETE FROM backstay.staged WHERE job_id = $1::uuid AND attempt = $2::integer AND part >= $3::integer
), named AS (
    INSERT INTO backstay.unpack_due (job_id, attempt) VALUES ($1::uuid, $2::integer)
)
SELECT count(*) FROM backstay.staged WHERE job_id = $1::uuid AND attempt = $2::integer AND part < $3::integer

-- name: unpack_mark
-- A job whose staged children have to be stored: $1, or any that is not locked.
SELECT job_id::text, attempt FROM backstay.unpack_due WHERE $1::uuid IS NULL OR job_id = $1
LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: unpack_part
-- Take the next part of what an attempt has staged, and say whether it is the last.
WITH taken AS (
    DELETE FROM backstay.staged WHERE (job_id, attempt, part) = (
        SELECT job_id, attempt, part FROM backstay.staged WHERE job_id = $1::uuid AND attempt = $2::integer
        ORDER BY part LIMIT 1)
    RETURNING part, jobs
)
SELECT jobs, NOT EXISTS (
    SELECT FROM backstay.staged AS more
    WHERE more.job_id = $1::uuid AND more.attempt = $2::integer AND more.part > taken.part)
FROM taken

-- name: unpacked
-- All that an attempt had staged is stored.
DELETE FROM backstay.unpack_due WHERE job_id = $1::uuid AND attempt = $2::integer

-- name: staged_stale
-- Remove parts that were staged by an attempt which is over and did not name them.
DELETE FROM backstay.staged WHERE ctid = ANY (ARRAY(
    SELECT s.ctid FROM backstay.staged AS s
    WHERE NOT EXISTS (SELECT FROM backstay.unpack_due AS d WHERE d.job_id = s.job_id AND d.attempt = s.attempt)
      AND NOT EXISTS (
        SELECT FROM backstay.job AS j
        WHERE j.job_id = s.job_id AND (j.status || '') = 'processing' AND j.attempt = s.attempt)
    LIMIT $1))

-- name: complete
-- Settle completions as one set: those of jobs whose end sets nothing else free, which is nearly all. Rows are locked in
-- the order of their ids, each looked up by its own: a join would let the planner pair every row of the table with every
-- settlement, as soon as its statistics are old; (status || '') keeps it from doing so with the rows that are processing.
-- Rows that someone else holds are passed over: the slow way waits for them, once the others are settled.
-- Children are left out unless $8 says that the caller counts them with their parents.
-- `by` comes as JSON. Counted as what was claimed: someone may have changed the priority since.
WITH locked AS MATERIALIZED (
    SELECT j.place_of, s.result, s.by, s.priority
    FROM (
        SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::integer[])
            AS s (job_id, attempt, token, result, by, priority)
        ORDER BY job_id
    ) AS s
    CROSS JOIN LATERAL (
        SELECT ctid AS place_of, status, attempt, claim_token, awaited, concurrency_key, parent_job_id
        FROM backstay.job
        WHERE job_id = s.job_id
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS j
    WHERE (j.status || '') = 'processing' AND j.attempt = s.attempt AND j.claim_token = s.token
      AND NOT j.awaited AND j.concurrency_key IS NULL AND (j.parent_job_id IS NULL OR $8::boolean)
), moment AS MATERIALIZED (
    SELECT now, ',' || now || ',"complete","processing","completed",' AS event
    FROM (SELECT coalesce($7::bigint, backstay.micros()) AS now) AS clock
), done AS (
    UPDATE backstay.job AS j
    SET status = 'completed', version = j.version + 1, completed_at = moment.now, updated_at = moment.now,
        lease_expires_at = NULL, progress = 1, stage = 'complete', result = locked.result,
        history = backstay.trimmed(j.history, j.version) || E'\n[' || j.version + 1 || moment.event || j.attempt
            || ',' || locked.by || ']'
    FROM locked, moment
    WHERE j.ctid = locked.place_of
    RETURNING j.job_id, j.parent_job_id, j.job_type, j.queue, locked.priority, moment.now AS now, moment.now - j.started_at AS ran,
        j.started_at - j.scheduled_for AS waited
), counted AS (
    INSERT INTO backstay.counter AS c
        (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros, waited_micros)
    SELECT now - now % 60000000, job_type, queue, priority, 'completed', pg_backend_pid() % 64, bucket, count(*),
        sum(ran), sum(waited)
    FROM (SELECT *, backstay.bucket_of(ran, waited) AS bucket FROM done) AS done
    GROUP BY now, job_type, queue, priority, bucket
    ORDER BY job_type, queue, priority, bucket
    ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count,
        ran_micros = c.ran_micros + excluded.ran_micros, waited_micros = c.waited_micros + excluded.waited_micros
)
SELECT job_id::text, parent_job_id::text FROM done

-- name: lock_jobs
-- Hold these jobs until the end of the transaction, in the order of their ids; with their parents, whose numbers change
-- with them, and with those that the jobs in $2 depend on, which may wait for them again.
SELECT 1 FROM backstay.job
WHERE job_id = ANY ($1::uuid[]
    || ARRAY(SELECT parent_job_id FROM backstay.job WHERE job_id = ANY ($1::uuid[]) AND parent_job_id IS NOT NULL)
    || ARRAY(SELECT parent_id FROM backstay.edge WHERE child_id = ANY ($2::uuid[])))
ORDER BY job_id FOR UPDATE

-- name: dedup_keys_of
-- The dedup keys of jobs.
SELECT DISTINCT dedup_key FROM backstay.job WHERE job_id = ANY ($1::uuid[]) AND dedup_key IS NOT NULL

-- name: apply
-- Apply one transition while its guards hold. NULL keeps what is stored. Index: the unique one on job_id.
-- A claim's token outlives its settlement, so that a repeated write is recognised; others' changes clear it.
UPDATE backstay.job
SET status = $3,
    version = version + 1,
    updated_at = $8,
    completed_at = CASE WHEN $3 IN ('completed', 'failed', 'cancelled') THEN $8::bigint END,
    lease_expires_at = CASE WHEN $3 = 'processing' THEN lease_expires_at END,
    claim_token = CASE WHEN $6::text IS NULL AND $3 <> 'processing' THEN NULL ELSE claim_token END,
    parked = CASE WHEN $3 = 'pending' AND $2 = 'pending' THEN parked ELSE false END,
    rate_parked = CASE WHEN $3 = 'pending' AND $2 = 'pending' THEN rate_parked ELSE false END,
    priority = coalesce($9::integer, priority),
    scheduled_for = coalesce($10::bigint, scheduled_for),
    failures = coalesce($11::integer, failures),
    snoozes = coalesce($12::integer, snoozes),
    give_backs = coalesce($13::integer, give_backs),
    progress = coalesce($14::double precision, progress),
    stage = coalesce($15::text, stage),
    unmet_dependencies = CASE WHEN $3 = 'waiting' THEN coalesce($29::integer, unmet_dependencies) ELSE 0 END,
    awaits = CASE WHEN $3 = 'waiting' THEN coalesce($30::text, CASE $2 WHEN 'waiting' THEN awaits END) END,
    waits = coalesce($31::integer, waits),
    join_name = CASE WHEN $16 OR $30::text IS NOT NULL THEN $32::text ELSE join_name END,
    result = CASE WHEN $16 THEN NULL ELSE coalesce($17::text, result) END,
    result_artifact = CASE WHEN $16 THEN NULL ELSE coalesce($18::text, result_artifact) END,
    joins = CASE WHEN $16 THEN NULL ELSE joins END,
    reused_from = CASE WHEN $16 THEN NULL ELSE reused_from END,
    rows_of = CASE WHEN $16 THEN NULL ELSE rows_of END,
    rows_attempt = CASE WHEN $16 THEN NULL ELSE rows_attempt END,
    logs = coalesce($19::text, logs),
    log_location = coalesce($20::text, log_location),
    metrics = coalesce($21::text, metrics),
    artifacts = coalesce($22::text, artifacts),
    last_error = coalesce($23::text, last_error),
    errors = CASE WHEN $24::text IS NULL THEN errors ELSE backstay.with_error(errors, $24, $25) END,
    history = backstay.trimmed(history, version) || E'\n'
        || backstay.event(version + 1, $8, $26, $2, $3, $4, $27, $28)
WHERE job_id = $1::uuid
  AND (status || '') = $2
  AND attempt = $4
  AND ($5::integer IS NULL OR version = $5)
  AND ($6::text IS NULL OR claim_token = $6)
  AND ($7::bigint IS NULL OR lease_expires_at = $7)
RETURNING parent_job_id::text

-- name: unmeet
-- $1 waits again: of its edges, those to jobs that have not ended count anew, the others count no more; and those have
-- someone who waits on them. Index: edge_child.
WITH edges AS (
    UPDATE backstay.edge AS e
    SET met = NOT EXISTS (SELECT FROM backstay.job AS p WHERE p.job_id = e.parent_id AND p.completed_at IS NULL)
    WHERE e.child_id = $1::uuid AND NOT e.joined
    RETURNING e.parent_id, e.met
)
UPDATE backstay.job SET awaited = true WHERE job_id = ANY (ARRAY(SELECT parent_id FROM edges WHERE NOT met)) AND NOT awaited

-- name: outcomes_of
-- How those stand that $1 depends on, in the jobs or the archive, and how many of each; identical jobs that it only
-- joined are left out. Index: edge_child.
SELECT coalesce(p.status, a.status, 'completed'), count(*)
FROM backstay.edge AS e
LEFT JOIN backstay.job AS p ON p.job_id = e.parent_id
LEFT JOIN backstay.archive AS a ON a.job_id = e.parent_id
WHERE e.child_id = $1::uuid AND NOT e.joined
GROUP BY 1

-- name: trigger_rule
-- Under which rule a job starts.
SELECT coalesce(trigger_rule, 'all_success') FROM backstay.job WHERE job_id = $1::uuid

-- name: dedup_key_of
-- The dedup key of a job.
SELECT dedup_key FROM backstay.job WHERE job_id = $1::uuid

-- name: guard_target
-- Which job a dedup key stands for, and until when.
SELECT job_id::text, until FROM backstay.dedup WHERE dedup_key = $1

-- name: save_guard
-- A dedup key stands for a job again, while that is active.
INSERT INTO backstay.dedup (dedup_key, job_id, until) VALUES ($1, $2::uuid, NULL)
ON CONFLICT (dedup_key) DO UPDATE SET job_id = excluded.job_id, until = excluded.until

-- name: on_record
-- Whether a transition is in the history as it was asked for; an editor's as the version that it would have made.
SELECT EXISTS (
    SELECT FROM backstay.job AS j, string_to_table(j.history, E'\n') AS entry
    WHERE j.job_id = $1::uuid AND strpos(entry, $2) > 0 AND ($3::integer IS NULL OR starts_with(entry, '[' || $3 || ','))
)

-- name: standing
-- Where jobs stand: to answer for writes that did not apply.
SELECT job_id::text, status, attempt, claim_token FROM backstay.job WHERE job_id = ANY ($1::uuid[])

-- name: keys_of
-- The keys of jobs: whether any of them is or was waited for, their concurrency keys with limits, and the rate keys of
-- those in $2, which have left the line.
SELECT bool_or(awaited),
    (SELECT json_object_agg(key, key_limit)::text FROM (
        SELECT concurrency_key AS key, max(concurrency_limit) AS key_limit FROM backstay.job
        WHERE job_id = ANY ($1::uuid[]) AND concurrency_key IS NOT NULL AND concurrency_limit IS NOT NULL
        GROUP BY concurrency_key) AS keys),
    array_agg(DISTINCT rate_key) FILTER (WHERE rate_key IS NOT NULL AND job_id = ANY ($2::uuid[]))
FROM backstay.job WHERE job_id = ANY ($1::uuid[])

-- name: extend
-- Prolong leases that still hold, in the order of ids. Answers with those that did. A row that someone's transaction
-- holds is passed over until the next round: it must not cost the others their leases.
WITH locked AS MATERIALIZED (
    SELECT j.seq
    FROM (
        SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[]) AS h (job_id, attempt, token) ORDER BY job_id
    ) AS h
    CROSS JOIN LATERAL (
        SELECT seq, status, attempt, claim_token FROM backstay.job WHERE job_id = h.job_id
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS j
    WHERE (j.status || '') = 'processing' AND j.attempt = h.attempt AND j.claim_token = h.token
)
UPDATE backstay.job AS j SET lease_expires_at = coalesce($5::bigint, backstay.micros()) + $4::bigint
FROM locked WHERE j.seq = locked.seq
RETURNING j.job_id::text

-- name: note
-- Keep progress, stage, logs and metrics of running attempts, in the order of ids. Answers with those that still run.
WITH locked AS MATERIALIZED (
    SELECT j.seq, n.*
    FROM (
        SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::double precision[], $5::text[], $6::text[],
                $7::text[], $8::text[], $9::text[])
            AS n (job_id, attempt, token, progress, stage, logs, log_location, metrics, artifacts)
        ORDER BY job_id
    ) AS n
    CROSS JOIN LATERAL (
        SELECT seq, status, attempt, claim_token FROM backstay.job WHERE job_id = n.job_id FOR NO KEY UPDATE
    ) AS j
    WHERE (j.status || '') = 'processing' AND j.attempt = n.attempt AND j.claim_token = n.token
)
UPDATE backstay.job AS j
SET progress = coalesce(l.progress, j.progress), stage = coalesce(l.stage, j.stage), logs = coalesce(l.logs, j.logs),
    log_location = coalesce(l.log_location, j.log_location), metrics = coalesce(l.metrics, j.metrics),
    artifacts = coalesce(l.artifacts, j.artifacts), updated_at = coalesce($10::bigint, backstay.micros())
FROM locked AS l WHERE j.seq = l.seq
RETURNING j.job_id::text

-- name: record_step
-- Keep a step's answer while the claim holds; the first answer stays.
INSERT INTO backstay.step (job_id, name, answer, attempt, recorded_at)
SELECT j.job_id, $4, $5, $2, coalesce($6::bigint, backstay.micros()) FROM backstay.job AS j
WHERE j.job_id = $1::uuid AND (j.status || '') = 'processing' AND j.attempt = $2 AND j.claim_token = $3
FOR SHARE
ON CONFLICT (job_id, name) DO NOTHING

-- name: hold_claim
-- Whether a claim holds, and so until the end of the transaction.
SELECT status, attempt, claim_token FROM backstay.job WHERE job_id = $1::uuid FOR NO KEY UPDATE

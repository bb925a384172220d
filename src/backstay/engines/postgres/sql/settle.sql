-- name: stage
-- Keep a part of the children of a running attempt, while its claim holds. A repeat replaces it.
INSERT INTO backstay.staged AS s (job_id, attempt, part, jobs)
SELECT job_id, attempt, $4::integer, $5::bytea FROM backstay.running
WHERE job_id = $1::uuid AND attempt = $2 AND token = $3
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
      AND NOT EXISTS (SELECT FROM backstay.running AS r WHERE r.job_id = s.job_id AND r.attempt = s.attempt)
    LIMIT $1))

-- name: complete
-- Settle completions as one set: those of jobs whose end sets nothing else free, which is nearly all. To delete the claim
-- is the fence. Claims are locked in the order of their ids, each looked up by its own: a join would let the planner pair
-- every row of the table with every settlement, as soon as its statistics are old. Rows that someone else holds are
-- passed over: the slow way waits for them, once the others are settled. What has ended is what was deleted: a row that
-- changed since the statement began is left to the slow way as well. $10 to $15 are of claims, and $2 says of which each is.
-- Children are left out unless $17 says that the caller counts them with their parents. Counted as what was claimed:
-- someone may have changed the priority since. Returns how many were completed, and which unless all $18 were.
WITH locked AS MATERIALIZED (
    SELECT r.place_of, s.*
    FROM (
        SELECT *
        FROM unnest($1::text::uuid[], $2::text::integer[], $3::text::bigint[], string_to_array($4::text, E'\x1f', ''),
                $5::text[], $6::text[], $7::text[], $8::text[], $9::text[])
            AS s (job_id, claim, waited, result, result_artifact, logs, log_location, metrics, artifacts)
        ORDER BY job_id
    ) AS s
    CROSS JOIN LATERAL (
        SELECT ctid AS place_of, attempt, token, worker_id, awaited, concurrency_key, child FROM backstay.running
        WHERE job_id = s.job_id
        FOR UPDATE SKIP LOCKED
    ) AS r
    WHERE r.attempt = ($10::integer[])[s.claim] AND r.token = ($11::bigint[])[s.claim]
      AND r.worker_id = ($12::text[])[s.claim]
      AND NOT r.awaited AND r.concurrency_key IS NULL AND (NOT r.child OR $17::boolean)
), moment AS MATERIALIZED (
    SELECT coalesce($16::bigint, backstay.micros()) AS now
), gone AS (
    DELETE FROM backstay.running AS r USING locked AS s WHERE r.ctid = s.place_of
    RETURNING r.job_id, r.started_at, r.attempt, r.failures, r.version, r.token, r.findable, r.worker_id,
        r.worker_version, s.result, s.result_artifact, s.logs, s.log_location, s.metrics, s.artifacts, s.claim, s.waited
), done AS (
    INSERT INTO backstay.ended (job_id, completed_at, started_at, token, attempt, failures, version, status, worker_id,
        worker_version, result, result_artifact, job_type, content_hash, subject)
    SELECT g.job_id, moment.now, g.started_at, g.token, g.attempt, g.failures, g.version + 1, 'completed', g.worker_id,
        g.worker_version, g.result, g.result_artifact, f.job_type, f.content_hash, f.subject
    FROM moment CROSS JOIN gone AS g LEFT JOIN LATERAL (
        SELECT j.job_type, j.content_hash, CASE WHEN d.result_tables IS NOT NULL THEN j.subject END AS subject
        FROM backstay.job AS j LEFT JOIN backstay.detail AS d ON d.job_id = j.job_id
        WHERE g.findable AND j.job_id = g.job_id OFFSET 0) AS f ON true
), reported AS (
    INSERT INTO backstay.detail AS d (job_id, logs, log_location, metrics, artifacts)
    SELECT job_id, logs, log_location, metrics, artifacts FROM gone
    WHERE coalesce(logs, log_location, metrics, artifacts) IS NOT NULL
    ON CONFLICT (job_id) DO UPDATE SET logs = coalesce(excluded.logs, d.logs),
        log_location = coalesce(excluded.log_location, d.log_location), metrics = coalesce(excluded.metrics, d.metrics),
        artifacts = coalesce(excluded.artifacts, d.artifacts)
), of_kind AS MATERIALIZED (
    SELECT now, ($13::text[])[claim] AS job_type, ($14::text[])[claim] AS queue, ($15::integer[])[claim] AS priority,
        bucket, count, ran, waited
    FROM (
        SELECT moment.now, g.claim, backstay.bucket_of(moment.now - g.started_at, g.waited) AS bucket,
            count(*) AS count, sum(moment.now - g.started_at) AS ran, sum(g.waited) AS waited
        FROM gone AS g, moment
        GROUP BY moment.now, g.claim, bucket
    ) AS of_claim
), tallied AS (
    INSERT INTO backstay.tally AS t (shard, job_type, queue, priority, status, count)
    SELECT pg_backend_pid() % 64, job_type, queue, priority, 'completed', sum(count) FROM of_kind
    GROUP BY job_type, queue, priority
    ORDER BY job_type, queue, priority
    ON CONFLICT (shard, job_type, queue, priority, status) DO UPDATE SET count = t.count + excluded.count
), counted AS (
    INSERT INTO backstay.counter AS c
        (minute, job_type, queue, priority, outcome, shard, bucket, count, ran_micros, waited_micros)
    SELECT now - now % 60000000, job_type, queue, priority, 'completed', pg_backend_pid() % 64, bucket, sum(count),
        sum(ran), sum(waited)
    FROM of_kind
    GROUP BY now, job_type, queue, priority, bucket
    ORDER BY job_type, queue, priority, bucket
    ON CONFLICT (minute, job_type, queue, priority, outcome, shard, bucket) DO UPDATE SET count = c.count + excluded.count,
        ran_micros = c.ran_micros + excluded.ran_micros, waited_micros = c.waited_micros + excluded.waited_micros
)
SELECT count(*), CASE WHEN count(*) < $18::integer THEN array_agg(job_id::text) END FROM gone

-- name: lock_jobs
-- Hold these jobs until the end of the transaction, in the order of their ids; with their parents, whose numbers change
-- with them, and with those that the jobs in $2 depend on, which may wait for them again.
SELECT 1 FROM backstay.job
WHERE job_id = ANY ($1::uuid[]
    || ARRAY(SELECT parent_job_id FROM backstay.job WHERE job_id = ANY ($1::uuid[]) AND parent_job_id IS NOT NULL)
    || ARRAY(SELECT parent_id FROM backstay.edge WHERE child_id = ANY ($2::uuid[])))
ORDER BY job_id FOR UPDATE

-- name: parents_of
-- What jobs depend on. Index: edge_child.
SELECT DISTINCT parent_id::text FROM backstay.edge WHERE child_id = ANY ($1::uuid[])

-- name: dedup_keys_of
-- The dedup keys of jobs, with the jobs that they stand for, until when, and how those stand.
SELECT j.job_id::text, j.dedup_key, g.job_id::text, g.until, backstay.status_of(g.job_id)
FROM backstay.job AS j LEFT JOIN backstay.dedup AS g ON g.dedup_key = j.dedup_key
WHERE j.job_id = ANY ($1::uuid[]) AND j.dedup_key IS NOT NULL

-- name: unmeet
-- Jobs wait again: of their edges, those to jobs that have not ended count anew, the others count no more; and those have
-- someone who waits on them. Index: edge_child.
WITH edges AS (
    UPDATE backstay.edge AS e
    SET met = NOT EXISTS (SELECT FROM backstay.job AS p WHERE p.job_id = e.parent_id
        AND NOT EXISTS (SELECT FROM backstay.ended WHERE job_id = e.parent_id))
    WHERE e.child_id = ANY ($1::uuid[]) AND NOT e.joined
    RETURNING e.parent_id, e.met
)
SELECT DISTINCT parent_id::text FROM edges WHERE NOT met

-- name: outcomes_of
-- How those stand that jobs depend on, in the jobs or the archive; identical jobs that they only joined are left out.
-- Index: edge_child.
SELECT e.child_id::text, e.parent_id::text, coalesce(backstay.status_of(e.parent_id), 'completed')
FROM backstay.edge AS e
WHERE e.child_id = ANY ($1::uuid[]) AND NOT e.joined

-- name: save_guard
-- A dedup key stands for a job again, while that is active.
INSERT INTO backstay.dedup (dedup_key, job_id, until) VALUES ($1, $2::uuid, NULL)
ON CONFLICT (dedup_key) DO UPDATE SET job_id = excluded.job_id, until = excluded.until

-- name: latest_of
-- The last events of jobs, up to $2 of each, the newest first. Index: event_pkey.
SELECT n.id::text, v.event, v.attempt, v.token FROM unnest($1::uuid[]) AS n (id) CROSS JOIN LATERAL (
    SELECT version, event, attempt, token FROM backstay.event WHERE job_id = n.id ORDER BY version DESC LIMIT $2) AS v
ORDER BY n.id, v.version DESC

-- name: on_record
-- Whether a transition is in the history as it was asked for; an editor's as the version that it would have made, with
-- what it changed: someone else may have made another change of the same version.
SELECT EXISTS (
    SELECT FROM backstay.event
    WHERE job_id = $1::uuid AND event = $2 AND source = $3 AND target = ANY ($4::text[]) AND attempt = $5
      AND by IS NOT DISTINCT FROM $6::text
      AND ($7::integer IS NULL OR version = $7 AND details IS NOT DISTINCT FROM $8::text::jsonb)
)

-- name: claims
-- Claims that hold, and jobs that are there without one. Indexes: running_pkey, job_pkey.
SELECT n.id::text, r.attempt, r.token
FROM unnest($1::uuid[]) AS n (id)
LEFT JOIN LATERAL (SELECT attempt, token FROM backstay.running WHERE job_id = n.id OFFSET 0) AS r ON true
WHERE r.attempt IS NOT NULL OR EXISTS (SELECT FROM backstay.job WHERE job_id = n.id)

-- name: extend
-- Prolong leases that still hold, in the order of ids. Answers with those that did. A row that someone's transaction
-- holds is passed over until the next round: it must not cost the others their leases.
WITH locked AS MATERIALIZED (
    SELECT r.place_of
    FROM (
        SELECT * FROM unnest($1::uuid[], $2::integer[], $3::bigint[]) AS h (job_id, attempt, token) ORDER BY job_id
    ) AS h
    CROSS JOIN LATERAL (
        SELECT ctid AS place_of, attempt, token FROM backstay.running WHERE job_id = h.job_id
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS r
    WHERE r.attempt = h.attempt AND r.token = h.token
)
UPDATE backstay.running AS r SET lease_expires_at = coalesce($5::bigint, backstay.micros()) + $4::bigint
FROM locked WHERE r.ctid = locked.place_of
RETURNING r.job_id::text

-- name: note
-- Keep progress and stage of running attempts with the claim, and logs, metrics and artifacts in the detail, in the order
-- of ids. Answers with those that still run.
WITH locked AS MATERIALIZED (
    SELECT n.*
    FROM (
        SELECT * FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::double precision[], $5::text[], $6::text[],
                $7::text[], $8::text[], $9::text[])
            AS n (job_id, attempt, token, progress, stage, logs, log_location, metrics, artifacts)
        ORDER BY job_id
    ) AS n
    CROSS JOIN LATERAL (
        SELECT attempt, token FROM backstay.running WHERE job_id = n.job_id FOR NO KEY UPDATE
    ) AS r
    WHERE r.attempt = n.attempt AND r.token = n.token
), noted AS (
    UPDATE backstay.running AS r
    SET progress = coalesce(l.progress, r.progress), stage = coalesce(l.stage, r.stage),
        noted_at = coalesce($10::bigint, backstay.micros())
    FROM locked AS l WHERE r.job_id = l.job_id
), reported AS (
    INSERT INTO backstay.detail AS d (job_id, logs, log_location, metrics, artifacts)
    SELECT job_id, logs, log_location, metrics, artifacts FROM locked
    WHERE coalesce(logs, log_location, metrics, artifacts) IS NOT NULL
    ON CONFLICT (job_id) DO UPDATE SET logs = coalesce(excluded.logs, d.logs),
        log_location = coalesce(excluded.log_location, d.log_location), metrics = coalesce(excluded.metrics, d.metrics),
        artifacts = coalesce(excluded.artifacts, d.artifacts)
)
SELECT job_id::text FROM locked

-- name: forget_steps
-- Drop what a job's attempts have recorded and what was sent to them, except the worker's own, $2. Index: the primary key.
DELETE FROM backstay.step WHERE job_id = $1::uuid AND kind <> $2

-- name: record_step
-- Keep a step's answer while the claim holds; the first answer stays.
INSERT INTO backstay.step (job_id, kind, name, answer, attempt, recorded_at)
SELECT r.job_id, $7, $4, $5, $2, coalesce($6::bigint, backstay.micros()) FROM backstay.running AS r
WHERE r.job_id = $1::uuid AND r.attempt = $2 AND r.token = $3
FOR SHARE
ON CONFLICT (job_id, kind, name) DO NOTHING

-- name: append_output
-- Append parts to the output of jobs whose claims hold; a repeat changes nothing. A settlement of the job waits for this
-- commit; an extension of its lease does not.
INSERT INTO backstay.output (job_id, attempt, take, first, last, size, written_at, text)
SELECT r.job_id, b.attempt, b.take, b.first, b.last, b.size, coalesce($9::bigint, backstay.micros()), b.text
FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::integer[], $5::integer[], $6::integer[], $7::integer[], $8::text[])
    AS b (job_id, attempt, token, take, first, last, size, text)
JOIN backstay.running AS r ON r.job_id = b.job_id AND r.attempt = b.attempt AND r.token = b.token
FOR KEY SHARE OF r
ON CONFLICT (job_id, attempt, take, last) DO NOTHING
RETURNING job_id::text, attempt, take, first

-- name: replace_output
-- Drop what older attempts and takes have written. Index: the primary key.
DELETE FROM backstay.output WHERE job_id = $1::uuid AND (attempt, take) < ($2::integer, $3::integer)

-- name: hold_claim
-- Whether a claim holds, and so until the end of the transaction.
SELECT attempt, token FROM backstay.running WHERE job_id = $1::uuid FOR NO KEY UPDATE

-- name: children
-- Children of a job by id. Index: job_parent.
SELECT {record_columns} FROM (
    SELECT job_id FROM backstay.job AS j
    WHERE parent_job_id = $1::uuid AND job_id > $2::uuid AND ($3::text IS NULL OR backstay.status_of(j.job_id) = $3)
    ORDER BY job_id LIMIT $4
) AS h CROSS JOIN LATERAL (SELECT * FROM backstay.standing AS s WHERE s.job_id = h.job_id OFFSET 0) AS standing
ORDER BY h.job_id

-- name: staged_stale
-- Parts that were staged by an attempt which is over and did not name them. Index: the keys.
DELETE FROM staged WHERE rowid IN (
    SELECT s.rowid FROM staged AS s
    WHERE NOT EXISTS (SELECT 1 FROM unpack_due AS d WHERE d.job_id = s.job_id AND d.attempt = s.attempt)
      AND NOT EXISTS (
        SELECT 1 FROM job AS j JOIN running AS r ON r.seq = j.seq WHERE j.job_id = s.job_id AND r.attempt = s.attempt)
    LIMIT ?1)

-- name: complete
-- Settle completions of one claim as one set: those of jobs whose end sets nothing else free, which is nearly all; :batch
-- has the result of each by its id. They count with the parent that they name, and their history is derived from the
-- worker of the claim, so that both have to be right. Indexes: the unique one on job_id, the keys.
INSERT INTO ended (seq, status, attempt, failures, version, worker_id, worker_version, started_at, completed_at, token,
    result, job_type, content_hash, subject)
SELECT r.seq, 'completed', r.attempt, r.failures, r.version + 1, r.worker_id, r.worker_version, r.started_at, :now,
    r.token, s.value, CASE WHEN j.content_hash IS NOT NULL OR d.result_tables IS NOT NULL THEN j.job_type END,
    j.content_hash, CASE WHEN d.result_tables IS NOT NULL THEN j.subject END
FROM json_each(:batch) AS s CROSS JOIN job AS j ON j.job_id = s.key
CROSS JOIN running AS r ON r.seq = j.seq
LEFT JOIN detail AS d ON d.seq = j.seq
WHERE r.attempt = :attempt AND r.token = :token AND r.worker_id = :worker_id AND j.parent_job_id IS :parent
  AND r.awaited = 0 AND r.concurrency_key IS NULL

-- name: completed
-- Those in :batch no longer run, when `complete` has ended all of them. Index: the unique one on job_id.
DELETE FROM running
WHERE seq IN (SELECT j.seq FROM json_each(:batch) AS s CROSS JOIN job AS j ON j.job_id = s.key)

-- name: completed_some
-- The same where `complete` has ended only some, whose ids it tells. Indexes: the unique one on job_id, the keys.
DELETE FROM running
WHERE seq IN (SELECT j.seq FROM json_each(:batch) AS s CROSS JOIN job AS j ON j.job_id = s.key)
  AND seq IN (SELECT e.seq FROM ended AS e WHERE e.seq = running.seq)
RETURNING (SELECT job_id FROM job WHERE job.seq = running.seq)

-- name: keep_reports
-- What completed jobs leave besides a result: each [job_id, logs, their location, metrics, artifacts]. NULL keeps what is
-- stored.
INSERT INTO detail (seq, logs, log_location, metrics, artifacts)
SELECT j.seq, value ->> 1, value ->> 2, value ->> 3, value ->> 4
FROM json_each(:batch) AS s CROSS JOIN job AS j ON j.job_id = value ->> 0
WHERE true
ON CONFLICT (seq) DO UPDATE SET logs = coalesce(excluded.logs, logs),
    log_location = coalesce(excluded.log_location, log_location), metrics = coalesce(excluded.metrics, metrics),
    artifacts = coalesce(excluded.artifacts, artifacts)

-- name: outcomes_of
-- How those stand that ?1 depends on, in the jobs or the archive, and how many of each; identical jobs that it only
-- joined are left out. Index: edge_child.
SELECT coalesce(CASE WHEN j.seq IS NOT NULL THEN {status} END, a.status, 'completed'), count(*)
FROM edge AS x INDEXED BY edge_child
LEFT JOIN job AS j ON j.job_id = x.parent_id
LEFT JOIN ended AS e ON e.seq = j.seq LEFT JOIN running AS r ON r.seq = j.seq LEFT JOIN later AS l ON l.seq = j.seq
LEFT JOIN waiting AS w ON w.seq = j.seq
LEFT JOIN archive AS a ON a.job_id = x.parent_id
WHERE x.child_id = ?1 AND x.joined = 0
GROUP BY 1

-- name: unmeet
-- ?1 waits again: of its edges, those to jobs that have not ended count anew, the others count no more. Index: edge_child.
UPDATE edge INDEXED BY edge_child
SET met = NOT EXISTS (
    SELECT 1 FROM job AS j WHERE j.job_id = edge.parent_id
      AND NOT EXISTS (SELECT 1 FROM ended AS e WHERE e.seq = j.seq))
WHERE child_id = ?1 AND joined = 0

-- name: awaited_by
-- Those that ?1 waits on, which have someone who does from now on. Index: edge_child.
SELECT j.seq FROM edge AS x INDEXED BY edge_child CROSS JOIN job AS j ON j.job_id = x.parent_id
WHERE x.child_id = ?1 AND x.met = 0

-- name: extend
-- Prolong the claims in :batch, each [job_id, attempt, token]. Indexes: the unique one on job_id, the keys.
UPDATE running
SET lease_expires_at = :lease
WHERE seq IN (
    SELECT r.seq
    FROM json_each(:batch) AS s CROSS JOIN job AS j ON j.job_id = value ->> 0 CROSS JOIN running AS r ON r.seq = j.seq
    WHERE r.attempt = value ->> 1 AND r.token = value ->> 2)

-- name: holding
-- By which attempts and tokens the jobs in ?1 are held; NULL: they do not run.
SELECT j.job_id, r.attempt, r.token
FROM json_each(?1) AS each CROSS JOIN job AS j ON j.job_id = each.value LEFT JOIN running AS r ON r.seq = j.seq

-- name: note
-- How far a running attempt is, while its claim holds. NULL keeps what is stored.
UPDATE running
SET progress = coalesce(:progress, progress), stage = coalesce(:stage, stage), noted_at = :now
WHERE seq = (SELECT seq FROM job WHERE job_id = :job_id) AND attempt = :attempt AND token = :token

-- name: forget_steps
-- Drop what a job's attempts have recorded and what was sent to them, except the worker's own, ?2. Index: the primary key.
DELETE FROM step WHERE job_id = ?1 AND kind <> ?2

-- name: record_step
-- Keep a step's answer while the claim holds; the first answer stays.
INSERT INTO step (job_id, kind, name, answer, attempt, recorded_at)
SELECT :job_id, :kind, :name, :answer, :attempt, :now
FROM job AS j JOIN running AS r ON r.seq = j.seq
WHERE j.job_id = :job_id AND r.attempt = :attempt AND r.token = :token
ON CONFLICT (job_id, kind, name) DO NOTHING

-- name: append_output
-- Append a part while the claim holds. A repeat changes nothing.
INSERT INTO output (job_id, attempt, take, first, last, size, written_at, text)
SELECT :job_id, :attempt, :take, :first, :last, :size, :now, :text
FROM job AS j JOIN running AS r ON r.seq = j.seq
WHERE j.job_id = :job_id AND r.attempt = :attempt AND r.token = :token
ON CONFLICT (job_id, attempt, take, last) DO NOTHING

-- name: replace_output
-- Drop what older attempts and takes have written. Index: the key.
DELETE FROM output WHERE job_id = ?1 AND (attempt, take) < (?2, ?3)

-- name: children
-- A page of the children of :parent by id, with how they stand. Index: job_parent.
SELECT j.seq
FROM job AS j INDEXED BY job_parent
LEFT JOIN ended AS e ON e.seq = j.seq LEFT JOIN running AS r ON r.seq = j.seq LEFT JOIN later AS l ON l.seq = j.seq
LEFT JOIN waiting AS w ON w.seq = j.seq
WHERE j.parent_job_id = :parent AND j.job_id > :after AND (:status IS NULL OR :status = {status})
ORDER BY j.job_id
LIMIT :limit

-- name: store_part
-- Keep a part of the children of a running attempt. A repeat replaces it.
INSERT OR REPLACE INTO staged (job_id, attempt, part, jobs) VALUES (?1, ?2, ?3, ?4)

-- name: count_parts
-- How many parts an attempt has staged below ?3. Index: the key.
SELECT count(*) FROM staged WHERE job_id = ?1 AND attempt = ?2 AND part < ?3

-- name: drop_parts_from
-- Remove the parts of an attempt from ?3 on. Index: the key.
DELETE FROM staged WHERE job_id = ?1 AND attempt = ?2 AND part >= ?3

-- name: save_unpack
-- The children that an attempt has staged are to be stored.
INSERT INTO unpack_due (job_id, attempt) VALUES (?1, ?2)

-- name: unpack_mark
-- A job whose staged children have to be stored: ?1, or any.
SELECT job_id, attempt FROM unpack_due WHERE ?1 IS NULL OR job_id = ?1 LIMIT 1

-- name: next_parts
-- The next part of what an attempt has staged, and the one after it. Index: the key.
SELECT part, jobs FROM staged WHERE job_id = ?1 AND attempt = ?2 ORDER BY part LIMIT 2

-- name: drop_part
-- A part is stored. Index: the key.
DELETE FROM staged WHERE job_id = ?1 AND attempt = ?2 AND part = ?3

-- name: unpacked
-- All that an attempt had staged is stored. Index: the key.
DELETE FROM unpack_due WHERE job_id = ?1 AND attempt = ?2

-- name: keep_artifact
-- Where the result of a completed job lies. Indexes: the key, the unique one on job_id.
UPDATE ended SET result_artifact = ?1 WHERE seq = (SELECT seq FROM job WHERE job_id = ?2)

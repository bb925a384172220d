-- name: count
-- Add to the counters of a minute; one row per kind, outcome and bucket of a batch.
INSERT INTO counter (minute, job_type, queue, priority, outcome, bucket, count, ran_micros, waited_micros)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
ON CONFLICT DO UPDATE SET count = count + excluded.count, ran_micros = ran_micros + excluded.ran_micros,
    waited_micros = waited_micros + excluded.waited_micros

-- name: add_tally
-- Add to how many jobs of a kind there are, or are in a state; one row for each of a batch. Index: the key.
INSERT INTO tally (job_type, queue, priority, status, count) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT DO UPDATE SET count = count + excluded.count

-- name: drop_tally
-- No job of the kind is in the state any more. Index: the key.
DELETE FROM tally WHERE job_type = ?1 AND queue = ?2 AND priority = ?3 AND status = ?4 AND count = 0

-- name: last_seq
-- The position of the job that arrived last, and the one up to which submits are counted. The last of all is counted
-- before it is deleted: no position is given twice. Index: the keys.
SELECT max(coalesce((SELECT max(seq) FROM job), 0), counted), counted
FROM (SELECT CAST(value AS INTEGER) AS counted FROM meta WHERE name = 'counted_through')

-- name: count_submits
-- Add submits before the position ?1 to the counters, which are not in them yet. Index: the key.
INSERT INTO counter (minute, job_type, queue, priority, outcome, bucket, count, ran_micros, waited_micros)
SELECT minute, job_type, queue, priority, outcome, bucket, sum(count), 0, 0
FROM uncounted
WHERE seq < ?1
GROUP BY minute, job_type, queue, priority, outcome, bucket
ON CONFLICT DO UPDATE SET count = count + excluded.count

-- name: tally_submits
-- Add the same submits to how many jobs of their kinds there are. Index: the key.
INSERT INTO tally (job_type, queue, priority, status, count)
SELECT job_type, queue, priority, 'stored', count(*)
FROM uncounted
WHERE seq < ?1
GROUP BY job_type, queue, priority
ON CONFLICT DO UPDATE SET count = count + excluded.count

-- name: save_counted
-- Submits up to the position ?1 are in the counters. Index: the key.
UPDATE meta SET value = CAST(?1 AS TEXT) WHERE name = 'counted_through'

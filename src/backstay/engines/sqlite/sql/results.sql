-- name: rows_holder
-- Who holds a job, and in which result tables it has rows. Indexes: the unique one on job_id, the keys.
SELECT r.attempt, r.token, d.result_tables
FROM job AS j LEFT JOIN running AS r ON r.seq = j.seq LEFT JOIN detail AS d ON d.seq = j.seq
WHERE j.job_id = ?1

-- name: rows_add_table
-- A job has rows in one more table.
INSERT INTO detail (seq, result_tables) SELECT seq, json_array(?1) FROM job WHERE job_id = ?2
ON CONFLICT (seq) DO UPDATE SET result_tables = json_insert(coalesce(result_tables, '[]'), '$[#]', ?1)

-- name: rows_source
-- Whose rows a job answers with, and at which attempt that one is now, or was when it went to the archive.
SELECT {status}, coalesce(e.attempt, r.attempt, p.attempt, l.attempt, w.attempt), d.rows_of, d.rows_attempt, coalesce(
    (SELECT {donor_attempt} FROM job AS j_donor {joined_donor} WHERE j_donor.job_id = d.rows_of),
    (SELECT a.details ->> 'attempt' FROM archive AS a WHERE a.job_id = d.rows_of))
FROM job AS j
{joined}
WHERE j.job_id = ?1

-- name: rows_latest
-- The job with rows of a subject and type that completed last. Those of one that reused them may be withdrawn.
-- Index: ended_latest.
SELECT j.job_id
FROM ended AS e INDEXED BY ended_latest CROSS JOIN job AS j ON j.seq = e.seq LEFT JOIN detail AS d ON d.seq = e.seq
WHERE e.subject = ?1 AND e.job_type = ?2 AND e.status = 'completed'
  AND (d.rows_of IS NULL
    OR d.rows_attempt = (SELECT {donor_attempt} FROM job AS j_donor {joined_donor} WHERE j_donor.job_id = d.rows_of)
    OR EXISTS (SELECT 1 FROM archive AS k WHERE k.job_id = d.rows_of AND k.details ->> 'attempt' = d.rows_attempt))
ORDER BY e.completed_at DESC LIMIT 1

-- name: count_tables
-- How many result tables there are.
SELECT count(*) FROM result_table

-- name: is_taken
-- Whether there is a table or index of this name, in any case.
SELECT 1 FROM sqlite_schema WHERE name = ?1 COLLATE NOCASE

-- name: save_table
-- Store what a result table is declared as.
INSERT OR REPLACE INTO result_table (name, definition) VALUES (?1, ?2)

-- name: tables
-- What the result tables are declared as, by name.
SELECT definition FROM result_table ORDER BY name

-- name: table
-- What a result table is declared as. Index: the key.
SELECT definition FROM result_table WHERE name = ?1

-- name: archived_tables
-- The result tables of an archived job. Index: the key.
SELECT details ->> 'result_tables' FROM archive WHERE job_id = ?1

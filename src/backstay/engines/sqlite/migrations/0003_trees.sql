-- Trees and results: trigger rules, children and waiting parents, staged children, result tables.
-- NULL is the usual: all_success, no children, never waited, no rows.

ALTER TABLE job ADD COLUMN trigger_rule TEXT;
ALTER TABLE job ADD COLUMN children INTEGER;
ALTER TABLE job ADD COLUMN open_children INTEGER CHECK (open_children >= 0);
ALTER TABLE job ADD COLUMN failed_children INTEGER;
ALTER TABLE job ADD COLUMN cancelled_children INTEGER;
ALTER TABLE job ADD COLUMN awaits TEXT CHECK (awaits IS NULL OR status = 'waiting'); -- set: it waits for its children
ALTER TABLE job ADD COLUMN waits INTEGER;
ALTER TABLE job ADD COLUMN join_name TEXT;
ALTER TABLE job ADD COLUMN result_tables TEXT;   -- JSON array of names, set before the first row is there
ALTER TABLE job ADD COLUMN rows_of TEXT;         -- a reused job: whose rows it answers with, never a reused one itself …
ALTER TABLE job ADD COLUMN rows_attempt INTEGER; -- … and of which attempt of that one

-- children of a job
CREATE INDEX job_parent ON job (parent_job_id, job_id) WHERE parent_job_id IS NOT NULL;
-- the job with rows of a subject and type that completed last
CREATE INDEX job_latest ON job (subject, job_type, completed_at)
    WHERE subject IS NOT NULL AND status = 'completed' AND result_tables IS NOT NULL;

-- Children of a running attempt, until its settlement names them: msgpack of a list of NewJob.
CREATE TABLE staged (
    job_id  TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    part    INTEGER NOT NULL,
    jobs    BLOB NOT NULL,
    PRIMARY KEY (job_id, attempt, part)
) STRICT;

-- Jobs whose settlement has named its staged children, which are not all stored yet.
CREATE TABLE unpack_due (
    job_id  TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    PRIMARY KEY (job_id, attempt)
) STRICT, WITHOUT ROWID;

CREATE TABLE result_table (
    name       TEXT PRIMARY KEY COLLATE NOCASE,
    definition TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Files of jobs: full logs, artifacts, large results. In the database, so that every worker and every reader has them,
-- on whatever host. Here and not on the job's row: they are written once, and no claim or settlement reads them.

CREATE TABLE backstay.file (
    file_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id      uuid NOT NULL,
    attempt     integer NOT NULL CHECK (attempt >= 0), -- 0: the job's own, over all its attempts, as its log is
    name        text COLLATE "C" NOT NULL,
    size        bigint NOT NULL CHECK (size >= 0),
    last_append uuid, -- to recognise a repeat after a lost answer …
    made        text, -- … and a write, likewise. One that is under way is called <name>/<made>
    UNIQUE (job_id, attempt, name)
);

-- In parts, because one value ends at 1 GB and a log grows. No two parts of a file overlap, and there is no gap.
CREATE TABLE backstay.file_part (
    file_id bigint NOT NULL REFERENCES backstay.file ON DELETE CASCADE,
    start   bigint NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (file_id, start)
);

-- As before, and the files and result rows with the jobs, at once: who deletes a row wants what was made of it to be gone.
CREATE OR REPLACE FUNCTION backstay.drop_jobs(of_type text, of_subject text, by text DEFAULT 'sql') RETURNS integer
LANGUAGE plpgsql AS
$$
DECLARE
    dropped uuid[];
BEGIN
    PERFORM backstay.cancel_jobs(of_type, of_subject, by);
    WITH gone AS (
        DELETE FROM backstay.job WHERE subject = of_subject AND job_type = of_type AND NOT awaited
            AND parent_job_id IS NULL AND children IS NULL
        RETURNING job_id
    )
    SELECT array_agg(job_id) INTO dropped FROM gone;
    DELETE FROM backstay.edge WHERE child_id = ANY (dropped);
    DELETE FROM backstay.step WHERE job_id = ANY (dropped);
    DELETE FROM backstay.dedup WHERE job_id = ANY (dropped);
    DELETE FROM backstay.file WHERE job_id = ANY (dropped);
    PERFORM backstay.drop_rows(dropped);
    RETURN coalesce(cardinality(dropped), 0);
END
$$;

-- Trees and results: staged children, parents to be resumed, result tables.

-- Children of a running attempt, until its settlement names them: msgpack of a list of NewJob.
CREATE TABLE backstay.staged (
    job_id  uuid NOT NULL,
    attempt integer NOT NULL,
    part    integer NOT NULL,
    jobs    bytea NOT NULL,
    PRIMARY KEY (job_id, attempt, part)
);

-- Jobs whose settlement has named its staged children, which are not all stored yet.
CREATE TABLE backstay.unpack_due (
    job_id  uuid NOT NULL,
    attempt integer NOT NULL,
    PRIMARY KEY (job_id, attempt)
);

-- Parents whose last child was ended by SQL: maintenance decides whether they resume.
CREATE TABLE backstay.join_due (
    job_id uuid PRIMARY KEY
);

-- What children add to the counts of a parent, if SQL submits or ends them. Maintenance decides whether a parent that
-- waited for the last of them resumes.
CREATE FUNCTION backstay.count_children(
    parent uuid, coming integer, still_open integer, bad integer, left_out integer) RETURNS void LANGUAGE sql AS
$$
    WITH counted AS (
        UPDATE backstay.job SET children = coalesce(children, 0) + coming,
            open_children = coalesce(open_children, 0) + still_open,
            failed_children = coalesce(failed_children, 0) + bad,
            cancelled_children = coalesce(cancelled_children, 0) + left_out
        WHERE job_id = parent
        RETURNING job_id, awaits, open_children
    )
    INSERT INTO backstay.join_due (job_id) SELECT job_id FROM counted WHERE awaits IS NOT NULL AND open_children = 0
    ON CONFLICT DO NOTHING
$$;

CREATE TABLE backstay.result_table (
    name       text COLLATE "C" PRIMARY KEY,
    definition text NOT NULL
);

-- The rows of jobs that SQL removes.
CREATE FUNCTION backstay.drop_rows(job_ids uuid[]) RETURNS void LANGUAGE plpgsql AS
$$
DECLARE
    each text;
BEGIN
    FOR each IN SELECT name FROM backstay.result_table WHERE job_ids IS NOT NULL LOOP
        EXECUTE format('DELETE FROM backstay.%I WHERE job_id = ANY ($1)', 'result_' || each) USING job_ids;
    END LOOP;
END
$$;

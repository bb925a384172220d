-- Remove parts that were staged by an attempt which is over and did not name them.
DELETE FROM holdfast.staged WHERE ctid = ANY (ARRAY(
    SELECT s.ctid FROM holdfast.staged AS s
    WHERE NOT EXISTS (SELECT FROM holdfast.unpack_due AS d WHERE d.job_id = s.job_id AND d.attempt = s.attempt)
      AND NOT EXISTS (
        SELECT FROM holdfast.job AS j
        WHERE j.job_id = s.job_id AND (j.status || '') = 'processing' AND j.attempt = s.attempt)
    LIMIT $1))

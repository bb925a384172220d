-- Parts that were staged by an attempt which is over and did not name them. Index: the keys.
DELETE FROM staged WHERE rowid IN (
    SELECT s.rowid FROM staged AS s
    WHERE NOT EXISTS (SELECT 1 FROM unpack_due AS d WHERE d.job_id = s.job_id AND d.attempt = s.attempt)
      AND NOT EXISTS (
        SELECT 1 FROM job AS j WHERE j.job_id = s.job_id AND +j.status = 'processing' AND j.attempt = s.attempt)
    LIMIT ?1)

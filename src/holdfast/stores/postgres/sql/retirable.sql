-- Of the next $2 jobs by arrival, those that ended before $3; how far that went, and when the oldest of them arrived.
-- With each the root of its tree, NULL where it stands alone. Indexes: the primary key, job_root.
SELECT json_agg(json_build_array(seq, job_id, job_type, status, completed_at, CASE
            WHEN root_job_id IS NOT NULL THEN root_job_id
            WHEN EXISTS (SELECT 1 FROM holdfast.job AS member WHERE member.root_job_id = step.job_id) THEN job_id END))
        FILTER (WHERE completed_at < $3)::text,
    max(seq), min(created_at), count(*)
FROM (
    SELECT seq, job_id, job_type, status, completed_at, root_job_id, created_at FROM holdfast.job
    WHERE seq > $1 ORDER BY seq LIMIT $2
) AS step

-- Of the next ?2 jobs by arrival, those that ended before ?3; how far that went, and when the oldest of them arrived.
-- With each the root of its tree, NULL where it stands alone. Index: job_root.
-- Walks the table in the order of its key: no index on the hot path has to be kept for this.
SELECT
    json_group_array(json_array(seq, job_id, job_type, status, completed_at, CASE
        WHEN root_job_id IS NOT NULL THEN root_job_id
        WHEN EXISTS (SELECT 1 FROM job AS member INDEXED BY job_root WHERE member.root_job_id = arrived.job_id)
        THEN job_id END))
        FILTER (WHERE completed_at < ?3 AND (status = 'completed' OR status = 'failed' OR status = 'cancelled')),
    max(seq), min(created_at), count(*)
FROM (
    SELECT seq, job_id, job_type, status, completed_at, root_job_id, created_at
    FROM job NOT INDEXED
    WHERE seq > ?1
    ORDER BY seq
    LIMIT ?2
) AS arrived

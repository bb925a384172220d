-- Every job of the tree of ?1, and how each stands. Index: job_root.
SELECT seq, job_id, job_type, status, completed_at FROM job WHERE job_id = ?1
UNION ALL
SELECT seq, job_id, job_type, status, completed_at FROM job INDEXED BY job_root WHERE root_job_id = ?1

-- Every job of the tree of $1, and how each stands. Index: job_root.
SELECT seq, job_id::text, job_type, status, completed_at FROM holdfast.job WHERE job_id = $1::uuid
UNION ALL
SELECT seq, job_id::text, job_type, status, completed_at FROM holdfast.job WHERE root_job_id = $1::uuid

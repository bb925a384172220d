-- Keep a part of the children of a running attempt, while its claim holds. A repeat replaces it.
INSERT INTO holdfast.staged AS s (job_id, attempt, part, jobs)
SELECT job_id, attempt, $4::integer, $5::bytea FROM holdfast.job
WHERE job_id = $1::uuid AND (status || '') = 'processing' AND attempt = $2 AND claim_token = $3
ON CONFLICT (job_id, attempt, part) DO UPDATE SET jobs = excluded.jobs

-- Whose rows a job answers with, and at which attempt that one is now: NULL where retention has been there, which
-- leaves the rows that are still answered with.
SELECT job.status, job.attempt, job.rows_of, job.rows_attempt, donor.attempt
FROM job LEFT JOIN job AS donor ON donor.job_id = job.rows_of
WHERE job.job_id = ?1

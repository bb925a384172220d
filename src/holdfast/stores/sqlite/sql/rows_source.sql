-- Whose rows a job answers with, and at which attempt that one is now, or was when it went to the archive.
SELECT job.status, job.attempt, job.rows_of, job.rows_attempt, coalesce(donor.attempt,
    (SELECT a.details ->> 'attempt' FROM archive AS a WHERE a.job_id = job.rows_of))
FROM job LEFT JOIN job AS donor ON donor.job_id = job.rows_of
WHERE job.job_id = ?1

-- How a job stands, in the jobs or in the archive.
SELECT coalesce((SELECT status FROM job WHERE job_id = ?1), (SELECT status FROM archive WHERE job_id = ?1))

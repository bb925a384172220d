-- The archived jobs that are over their time there. Index: archive_age.
SELECT job_id FROM archive INDEXED BY archive_age WHERE archived_at < ?1 AND has_files = 0 ORDER BY archived_at LIMIT ?2

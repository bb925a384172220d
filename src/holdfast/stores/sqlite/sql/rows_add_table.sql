-- A job has rows in one more table.
UPDATE job SET result_tables = json_insert(coalesce(result_tables, '[]'), '$[#]', ?1) WHERE job_id = ?2

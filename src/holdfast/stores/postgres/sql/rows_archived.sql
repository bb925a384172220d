-- In which tables an archived job has left rows. Index: archive_pkey.
SELECT details::json ->> 'result_tables' FROM holdfast.archive WHERE job_id = $1

-- By which write the file is what it is. Index: file_job_id_attempt_name_key.
SELECT made FROM holdfast.file WHERE job_id = $1 AND attempt = $2 AND name = $3

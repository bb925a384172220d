-- A file, its parts with it. Index: file_job_id_attempt_name_key.
DELETE FROM holdfast.file WHERE job_id = $1 AND attempt = $2 AND name = $3

-- All files of some jobs, their parts with them. Index: file_job_id_attempt_name_key.
DELETE FROM holdfast.file WHERE job_id = ANY ($1::uuid[])

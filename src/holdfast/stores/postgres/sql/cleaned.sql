-- Their files are gone.
UPDATE holdfast.archive SET has_files = false WHERE job_id = ANY ($1::uuid[])

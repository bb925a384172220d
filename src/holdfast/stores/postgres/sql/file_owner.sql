-- Hold a job's row until the commit that gives it a file: retention cannot pass in between and leave the file behind.
SELECT true FROM holdfast.job WHERE job_id = $1 FOR KEY SHARE

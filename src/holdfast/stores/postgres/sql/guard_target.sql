-- Which job a dedup key stands for, and until when.
SELECT job_id::text, until FROM holdfast.dedup WHERE dedup_key = $1

-- Under which rule a job starts.
SELECT coalesce(trigger_rule, 'all_success') FROM holdfast.job WHERE job_id = $1::uuid

-- What is known of types.
SELECT details FROM holdfast.job_type ORDER BY job_type

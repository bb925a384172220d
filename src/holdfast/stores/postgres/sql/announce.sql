-- What apps say about their types.
INSERT INTO holdfast.job_type (job_type, details) SELECT * FROM unnest($1::text[], $2::text[])
ON CONFLICT (job_type) DO UPDATE SET details = excluded.details

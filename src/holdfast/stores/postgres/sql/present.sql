-- How many of these jobs are there: an insert whose answer was lost is recognised by its ids. Index: the unique one.
SELECT count(*) FROM holdfast.job WHERE job_id = ANY ($1::uuid[])

-- How long a job took.
SELECT holdfast.took($1::uuid)

-- How a job stands, in the jobs or in the archive.
SELECT holdfast.status_of($1::uuid)

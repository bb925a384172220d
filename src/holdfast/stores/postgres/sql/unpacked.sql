-- All that an attempt had staged is stored.
DELETE FROM holdfast.unpack_due WHERE job_id = $1::uuid AND attempt = $2::integer

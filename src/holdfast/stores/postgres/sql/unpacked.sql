-- All that was staged is stored.
DELETE FROM holdfast.unpack_due WHERE job_id = $1::uuid

-- A job whose staged children have to be stored: $1, or any that nobody else is at.
SELECT job_id::text, attempt FROM holdfast.unpack_due WHERE $1::uuid IS NULL OR job_id = $1
LIMIT 1 FOR UPDATE SKIP LOCKED

-- Name what an attempt has staged, in its settlement: $3 parts. Others are of a call within it that crashed. Answers how
-- many of them are there.
WITH dropped AS (
    DELETE FROM holdfast.staged WHERE job_id = $1::uuid AND attempt = $2::integer AND part >= $3::integer
), named AS (
    INSERT INTO holdfast.unpack_due (job_id, attempt) VALUES ($1::uuid, $2::integer)
)
SELECT count(*) FROM holdfast.staged WHERE job_id = $1::uuid AND attempt = $2::integer AND part < $3::integer

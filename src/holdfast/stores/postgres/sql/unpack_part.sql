-- Take the next part of what an attempt has staged, and say whether it is the last.
WITH taken AS (
    DELETE FROM holdfast.staged WHERE (job_id, attempt, part) = (
        SELECT job_id, attempt, part FROM holdfast.staged WHERE job_id = $1::uuid AND attempt = $2::integer
        ORDER BY part LIMIT 1)
    RETURNING part, jobs
)
SELECT jobs, NOT EXISTS (
    SELECT FROM holdfast.staged AS more
    WHERE more.job_id = $1::uuid AND more.attempt = $2::integer AND more.part > taken.part)
FROM taken

-- Prolong leases that still hold, in the order of ids. Answers with those that did.
WITH h AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[]) AS h (job_id, attempt, token)
), locked AS MATERIALIZED (
    SELECT j.seq FROM holdfast.job AS j JOIN h ON j.job_id = h.job_id
    WHERE (j.status || '') = 'processing' AND j.attempt = h.attempt AND j.claim_token = h.token
    ORDER BY j.job_id
    FOR NO KEY UPDATE OF j
)
UPDATE holdfast.job AS j SET lease_expires_at = coalesce($5::bigint, holdfast.micros()) + $4::bigint
FROM locked WHERE j.seq = locked.seq
RETURNING j.job_id::text

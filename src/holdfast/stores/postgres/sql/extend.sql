-- Prolong leases that still hold, in the order of ids. Answers with those that did. A row that someone's transaction
-- holds is passed over until the next round: it must not cost the others their leases.
WITH locked AS MATERIALIZED (
    SELECT j.seq
    FROM (
        SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[]) AS h (job_id, attempt, token) ORDER BY job_id
    ) AS h
    CROSS JOIN LATERAL (
        SELECT seq, status, attempt, claim_token FROM holdfast.job WHERE job_id = h.job_id
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS j
    WHERE (j.status || '') = 'processing' AND j.attempt = h.attempt AND j.claim_token = h.token
)
UPDATE holdfast.job AS j SET lease_expires_at = coalesce($5::bigint, holdfast.micros()) + $4::bigint
FROM locked WHERE j.seq = locked.seq
RETURNING j.job_id::text

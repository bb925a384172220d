-- A job that is held has rows in one more table. Index: job_pkey.
UPDATE holdfast.job AS j SET result_tables = (coalesce(j.result_tables, '[]')::jsonb || to_jsonb($1::text))::text
WHERE j.job_id = $2 AND (j.status || '') = 'processing' AND j.attempt = $3 AND j.claim_token = $4

-- Jobs of these rate keys are no longer in sight, and did not start: others may take their places.
UPDATE holdfast.rate SET due_at = $2 WHERE rate_key = ANY ($1::text[]) AND due_at = $3

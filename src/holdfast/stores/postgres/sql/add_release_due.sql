-- Mark a job whose dependents one transaction could not all release.
INSERT INTO holdfast.release_due (parent_id) VALUES ($1::uuid) ON CONFLICT DO NOTHING

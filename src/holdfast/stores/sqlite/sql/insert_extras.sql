-- What a special submission adds to its row, in the transaction that inserted it.
UPDATE job
SET dedup_key = :dedup_key, unmet_dependencies = :unmet, parked = :parked, joins = :joins, reused_from = :reused_from
WHERE job_id = :job_id

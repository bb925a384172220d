-- What a special submission adds to its row, in the transaction that inserted it.
UPDATE job
SET dedup_key = :dedup_key, unmet_dependencies = :unmet, parked = :parked, rate_parked = :rate_parked, joins = :joins,
    trigger_rule = :trigger_rule,
    rate_key = :rate_key, rate_count = :rate_count, rate_micros = :rate_micros, schedule = :schedule, tick_at = :tick_at
WHERE job_id = :job_id

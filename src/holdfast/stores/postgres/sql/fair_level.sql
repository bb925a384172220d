-- The highest priority below $3 at which jobs of a lane wait. Indexes: job_ready, job_keyed, job_fair.
SELECT greatest(
    coalesce((SELECT priority FROM holdfast.job
        WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
          AND queue = $1 AND job_type = $2 AND priority < $3
        ORDER BY priority DESC LIMIT 1), -1),
    coalesce((SELECT priority FROM holdfast.job
        WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
          AND queue = $1 AND job_type = $2 AND NOT parked AND priority < $3
        ORDER BY priority DESC LIMIT 1), -1),
    coalesce((SELECT priority FROM holdfast.job
        WHERE status = 'pending' AND fairness_key IS NOT NULL
          AND queue = $1 AND job_type = $2 AND NOT parked AND priority < $3
        ORDER BY priority DESC LIMIT 1), -1))

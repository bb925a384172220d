-- Whether jobs with a concurrency, rate or fairness key wait in the asked lanes. Indexes: job_keyed, job_fair.
SELECT EXISTS (
    SELECT 1 FROM unnest($1::text[], $2::text[]) AS l (queue, job_type)
    WHERE EXISTS (
        SELECT 1 FROM holdfast.job AS j
        WHERE j.status = 'pending' AND j.fairness_key IS NULL
          AND (j.concurrency_key IS NOT NULL OR j.rate_key IS NOT NULL)
          AND j.queue = l.queue AND j.job_type = l.job_type AND NOT j.parked)
      OR EXISTS (
        SELECT 1 FROM holdfast.job AS j
        WHERE j.status = 'pending' AND j.fairness_key IS NOT NULL
          AND j.queue = l.queue AND j.job_type = l.job_type AND NOT j.parked))

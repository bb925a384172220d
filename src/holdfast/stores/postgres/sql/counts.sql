-- Jobs per state: what is not completed is counted through small indexes (job_ready, job_keyed, job_fair, job_processing,
-- job_state), all jobs through the slimmest large one (job_pkey); no row is looked at where the visibility map is kept.
WITH few AS MATERIALIZED (
    SELECT 'pending' AS status, count(*) AS jobs FROM holdfast.job
    WHERE status = 'pending' AND fairness_key IS NULL AND concurrency_key IS NULL AND rate_key IS NULL
    UNION ALL
    SELECT 'pending', count(*) FROM holdfast.job
    WHERE status = 'pending' AND fairness_key IS NULL AND (concurrency_key IS NOT NULL OR rate_key IS NOT NULL)
    UNION ALL
    SELECT 'pending', count(*) FROM holdfast.job WHERE status = 'pending' AND fairness_key IS NOT NULL
    UNION ALL
    SELECT 'processing', count(*) FROM holdfast.job WHERE status = 'processing'
    UNION ALL
    SELECT status, count(*) FROM holdfast.job
    WHERE status IN ('waiting', 'scheduled', 'retrying', 'failed', 'cancelled')
    GROUP BY status
)
SELECT status, sum(jobs)::bigint FROM few GROUP BY status
UNION ALL
SELECT 'completed', (SELECT count(*) FROM holdfast.job) - (SELECT sum(jobs)::bigint FROM few)

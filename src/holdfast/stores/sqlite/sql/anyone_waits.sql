-- Whether any edge is unmet, and whether any job has a concurrency key. Indexes: edge_unmet, job_key.
SELECT
    EXISTS (SELECT 1 FROM edge INDEXED BY edge_unmet WHERE met = 0),
    EXISTS (SELECT 1 FROM job INDEXED BY job_key WHERE concurrency_key IS NOT NULL)

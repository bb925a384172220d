-- Jobs per state.
SELECT status, count(*) FROM job GROUP BY status

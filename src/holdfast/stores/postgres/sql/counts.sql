-- Jobs per state.
SELECT status, count(*) FROM holdfast.job GROUP BY status

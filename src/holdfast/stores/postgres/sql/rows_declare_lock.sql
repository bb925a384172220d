-- One who changes result tables at a time: the others wait, and find it done.
SELECT pg_advisory_xact_lock(hashtextextended('holdfast.result_table', 0))

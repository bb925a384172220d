-- Who finishes the same file waits here until the other has committed.
SELECT pg_advisory_xact_lock(hashtextextended('holdfast file ' || $1::text, 0))

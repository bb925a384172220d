-- Hold names until the end of the transaction, in one order for everyone.
SELECT pg_advisory_xact_lock(lock) FROM (
    SELECT DISTINCT hashtextextended(name, 0) AS lock FROM unnest($1::text[]) AS n (name) ORDER BY lock) AS locks

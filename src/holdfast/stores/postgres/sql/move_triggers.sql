-- The triggers that keep a queue from changing. Of the catalogue.
SELECT t.tgname::text, c.relname::text FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND starts_with(t.tgname::text, $2) AND NOT t.tgisinternal

-- The schema in which pgvector is.
SELECT n.nspname::text FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace WHERE e.extname = 'vector'

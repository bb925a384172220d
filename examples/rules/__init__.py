"""Rules with embeddings: a table in PostgreSQL, whose rows get their vectors by jobs that a trigger submits."""

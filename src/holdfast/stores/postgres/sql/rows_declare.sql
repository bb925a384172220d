-- A result table as it is from here on. Index: result_table_pkey.
INSERT INTO holdfast.result_table (name, definition) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET definition = excluded.definition

-- name: own_tables
-- The tables of a file.
SELECT name FROM sqlite_schema WHERE type = 'table'

-- name: result_names
-- The names of the result tables.
SELECT name FROM result_table

-- name: references
-- Which tables of a file refer to which others.
SELECT m.name, f."table" FROM sqlite_schema AS m JOIN pragma_foreign_key_list(m.name) AS f WHERE m.type = 'table'

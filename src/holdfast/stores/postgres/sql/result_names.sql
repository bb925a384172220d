-- The names of all result tables. Index: the primary key.
SELECT name FROM holdfast.result_table ORDER BY name

-- How far a move is, if there is one. Index: the primary key, of a table of one row.
SELECT state FROM holdfast.move

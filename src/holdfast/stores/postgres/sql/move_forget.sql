-- There is no move any more. A table of one row.
DELETE FROM holdfast.move

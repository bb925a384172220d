-- Whether there is a schedule of this name, and how many there are.
SELECT (SELECT version FROM holdfast.schedule WHERE name = $1), (SELECT count(*) FROM holdfast.schedule)

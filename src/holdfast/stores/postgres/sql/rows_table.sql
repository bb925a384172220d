-- One of them: names that differ in case alone are one table elsewhere, so they are one here. There are not many.
SELECT definition FROM holdfast.result_table WHERE lower(name) = lower($1)

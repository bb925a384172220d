-- What came before this is in the sums; and the first minute after it that has something. Index: the primary key.
SELECT until, (SELECT min(minute) FROM holdfast.counter WHERE minute >= until)
FROM (SELECT coalesce((SELECT until FROM holdfast.summed), 0) AS until) AS so_far

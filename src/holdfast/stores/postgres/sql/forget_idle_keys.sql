-- A key that is no further than its lane is where a new one would start: its row says nothing. Nor does that of one
-- whose last turn was before $1: it was one step ahead of its lane, and that may not have moved since.
DELETE FROM holdfast.fair_key AS k USING holdfast.fair_lane AS l
WHERE l.queue = k.queue AND l.job_type = k.job_type AND (k.position <= l.position OR k.turn_at < $1)

-- A key that is no further than its lane is where a new one would start: its row says nothing.
DELETE FROM holdfast.fair_key AS k USING holdfast.fair_lane AS l
WHERE l.queue = k.queue AND l.job_type = k.job_type AND k.position <= l.position

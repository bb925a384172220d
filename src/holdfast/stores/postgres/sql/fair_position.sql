-- How far a key has come in its lane.
SELECT position FROM holdfast.fair_key WHERE queue = $1 AND job_type = $2 AND fairness_key = $3

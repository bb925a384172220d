-- How far a lane has come, and where the next look at its keys begins.
SELECT position, after_key FROM holdfast.fair_lane WHERE queue = $1 AND job_type = $2

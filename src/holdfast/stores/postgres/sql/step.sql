-- The recorded answer of a step.
SELECT answer FROM holdfast.step WHERE job_id = $1::uuid AND name = $2

-- Whether a transition is in the history as it was asked for; an editor's as the version that it would have made.
SELECT EXISTS (
    SELECT FROM holdfast.job AS j, string_to_table(j.history, E'\n') AS entry
    WHERE j.job_id = $1::uuid AND strpos(entry, $2) > 0 AND ($3::integer IS NULL OR starts_with(entry, '[' || $3 || ','))
)

-- Whether a claim's settlement is in the history as it was asked for.
SELECT strpos(history, $2) > 0 FROM holdfast.job WHERE job_id = $1::uuid

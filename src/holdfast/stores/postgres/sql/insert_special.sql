-- One job that is more than a row.
SELECT holdfast.insert_special($1::jsonb, $2::bigint, $3::bigint)

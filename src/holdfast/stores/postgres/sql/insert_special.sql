-- One job that is more than a row. $4: on which terms.
SELECT holdfast.insert_special($1::jsonb || $4::jsonb, $2::bigint, $3::bigint)

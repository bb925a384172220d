-- Several jobs that are more than a row, in turn: the function is volatile, so each sees what those before it did.
-- $4: on which terms.
SELECT holdfast.insert_special(each.job || $4::jsonb, $2::bigint, $3::bigint)
FROM (SELECT job FROM jsonb_array_elements($1::jsonb) WITH ORDINALITY AS one (job, place) ORDER BY place) AS each

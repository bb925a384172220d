-- Jobs that are rows and nothing more, in one statement.
SELECT holdfast.insert_plain($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::text[], $6::bigint[], $7::integer[],
    $8::bigint[], $9::text[], $10::text[], $11::text[], $12::text[], $13::uuid[], $14::text[], $15::integer[],
    $16::text[], $17::integer[], $18::bigint, $19::bigint)

-- Some parts of it.
INSERT INTO holdfast.file_part (file_id, start, content) SELECT $1, start, content
FROM unnest($2::bigint[], $3::bytea[]) AS part (start, content)

-- Some parts of it; those that are there are the same. Index: file_part_pkey.
INSERT INTO holdfast.file_part (file_id, start, content) SELECT $1, start, content
FROM unnest($2::bigint[], $3::bytea[]) AS part (start, content)
ON CONFLICT (file_id, start) DO NOTHING

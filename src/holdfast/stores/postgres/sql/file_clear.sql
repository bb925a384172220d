-- What the file was before. Index: file_part_pkey.
DELETE FROM holdfast.file_part WHERE file_id = $1

-- A file that is whole gets its name. Index: file_pkey.
UPDATE holdfast.file SET name = $2, size = $3, made = $4 WHERE file_id = $1

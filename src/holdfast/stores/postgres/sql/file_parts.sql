-- The parts that have a byte of [$2, $3), in order. Index: file_part_pkey.
SELECT start, content FROM holdfast.file_part
WHERE file_id = $1 AND start < $3
  AND start >= (SELECT coalesce(max(start), 0) FROM holdfast.file_part WHERE file_id = $1 AND start <= $2)
ORDER BY start

-- Entries before $1, which are over their time. Index: the primary key.
DELETE FROM holdfast.audit
WHERE entry_id IN (SELECT entry_id FROM holdfast.audit WHERE entry_id < $1::text ORDER BY entry_id LIMIT $2)

-- A page of the audit trail after the entry $1, oldest first. Index: the primary key.
SELECT entry_id, at, by, via, action, target, before, after, outcome, remote
FROM holdfast.audit
WHERE entry_id > $1::text
ORDER BY entry_id LIMIT $2

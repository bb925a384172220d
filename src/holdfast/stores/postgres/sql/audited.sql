-- The trail before the entry $1, newest first. Index: the primary key.
SELECT entry_id, at, by, via, action, target, before, after, outcome, remote
FROM holdfast.audit
WHERE entry_id < $1::text
ORDER BY entry_id DESC LIMIT $2

-- Store an entry, in place of one of its id.
INSERT INTO holdfast.audit (entry_id, at, by, via, action, target, before, after, outcome, remote)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (entry_id) DO UPDATE SET at = excluded.at, by = excluded.by, via = excluded.via, action = excluded.action,
    target = excluded.target, before = excluded.before, after = excluded.after, outcome = excluded.outcome,
    remote = excluded.remote

-- Store an entry, in place of one of its id.
INSERT OR REPLACE INTO audit (entry_id, at, by, via, action, target, before, after, outcome, remote)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)

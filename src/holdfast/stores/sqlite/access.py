"""Keys of the HTTP API, and the trail of who changed what."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from holdfast import ids as job_ids
from holdfast.clock import MICROS, Instant
from holdfast.limits import AUDIT_DAYS
from holdfast.store.types import ApiKey, AuditEntry, AuditPage, Verdict
from holdfast.stores import access_rows
from holdfast.stores.sqlite import sql
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx

SAVE_KEY = load("save_key")
KEYS = load("keys")
NAMED = load("keys_named")
AUDIT = load("audit")
AUDITED = load("audited")
DROP = "DELETE FROM audit WHERE entry_id IN (SELECT entry_id FROM audit WHERE entry_id < ? ORDER BY entry_id LIMIT ?)"


def save_key(tx: Tx, key: ApiKey, new: bool) -> Verdict:
    tx.execute(SAVE_KEY, (*access_rows.key_values(key), new))
    if tx.connection.changes() or keys(tx.connection, [key.key_id]) == [key]:
        return Verdict.APPLIED
    return Verdict.STALE


def keys(connection: apsw.Connection, ids: Sequence[str]) -> list[ApiKey]:
    found = sql.rows(connection, NAMED, (msgspec.json.encode(ids).decode(),)) if ids else sql.rows(connection, KEYS)
    return [access_rows.key(row) for row in found]


def drop_keys(tx: Tx, ids: Sequence[str]) -> None:
    tx.connection.executemany("DELETE FROM api_key WHERE key_id = ?", [(each,) for each in ids])


def audit(tx: Tx, entries: Sequence[AuditEntry]) -> None:
    tx.connection.executemany(AUDIT, map(msgspec.structs.astuple, entries))


def audited(connection: apsw.Connection, after: str | None, limit: int) -> AuditPage:
    found = sql.rows(connection, AUDITED, (after or access_rows.AFTER_ALL, limit + 1))
    return access_rows.page([access_rows.entry(row) for row in found], limit)


def anything_to_drop(connection: apsw.Connection, now: Instant) -> bool:
    return bool(sql.value(connection, "SELECT EXISTS (SELECT 1 FROM audit WHERE entry_id < ?)", (_oldest(now),)))


def drop(tx: Tx, now: Instant, limit: int) -> None:
    tx.execute(DROP, (_oldest(now), limit))


def _oldest(now: Instant) -> str:
    return job_ids.floor(now - AUDIT_DAYS * 86_400 * MICROS)

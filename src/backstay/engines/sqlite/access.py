"""API keys, the audit trail and totals on SQLite.

Minutes of counters that are over are added to the totals before they are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import msgspec

from backstay import ids
from backstay.clock import MICROS, Instant
from backstay.core.records import (
    ApiKey,
    AuditEntry,
    AuditPage,
    Total,
    Verdict,
)
from backstay.engines import sql_rows
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite.connection import load
from backstay.engines.sqlite.writer import Tx
from backstay.limits import AUDIT_DAYS

TOTALS = load("totals")
SUM = load("sum_counters")
_UNTIL = "summed_until"
OLDEST_MINUTE = load("oldest_minute")
HAS_MINUTES_BEFORE = load("has_minutes_before")
DROP_MINUTES = load("drop_minutes")
META = load("meta")
SAVE_META = load("save_meta")


def totals(connection: apsw.Connection) -> list[Total]:
    return [sql_rows.total(*row) for row in sqlite_connection.rows(connection, TOTALS, (until(connection),))]


def until(connection: apsw.Connection) -> Instant:
    """Return the instant up to which counters are in the sums."""
    found = sqlite_connection.value(connection, META, (_UNTIL,))
    return 0 if found is None else int(found)


def keep_until(tx: Tx, instant: Instant) -> None:
    tx.connection.execute(SAVE_META, (_UNTIL, str(instant)))


def has_counters_to_sum(connection: apsw.Connection, now: Instant) -> bool:
    if _next_span(connection, now) is not None:
        return True
    oldest = sql_rows.droppable(until(connection), now)
    return bool(sqlite_connection.value(connection, HAS_MINUTES_BEFORE, (oldest,)))


def sum_counters(tx: Tx, now: Instant) -> None:
    tx.arrivals.count()  # or submits of an hour that is summed now would be in no sum
    span = _next_span(tx.connection, now)
    if span is not None:
        tx.connection.execute(SUM, span)
        keep_until(tx, span[1])
    tx.connection.execute(DROP_MINUTES, (sql_rows.droppable(until(tx.connection), now),))


def _next_span(connection: apsw.Connection, now: Instant) -> tuple[Instant, Instant] | None:
    start = until(connection)
    return sql_rows.next_span(start, sqlite_connection.value(connection, OLDEST_MINUTE, (start,)), now)


SAVE_KEY = load("save_key")
KEYS = load("keys")
NAMED = load("keys_named")
AUDIT = load("audit")
AUDITED = load("audited")
DROP_KEY = load("drop_key")
HAS_ENTRIES_BEFORE = load("has_entries_before")
DROP_ENTRIES = load("drop_entries")


def save_key(tx: Tx, key: ApiKey, new: bool) -> Verdict:
    tx.connection.execute(SAVE_KEY, (*sql_rows.key_values(key), new))
    if tx.connection.changes() or keys(tx.connection, [key.key_id]) == [key]:
        return Verdict.APPLIED
    return Verdict.STALE


def keys(connection: apsw.Connection, ids: Sequence[str]) -> list[ApiKey]:
    found = (
        sqlite_connection.rows(connection, NAMED, (msgspec.json.encode(ids).decode(),))
        if ids
        else sqlite_connection.rows(connection, KEYS)
    )
    return [sql_rows.key(row) for row in found]


def drop_keys(tx: Tx, ids: Sequence[str]) -> None:
    tx.connection.executemany(DROP_KEY, [(each,) for each in ids])


def audit(tx: Tx, entries: Sequence[AuditEntry]) -> None:
    tx.connection.executemany(AUDIT, map(msgspec.structs.astuple, entries))


def audited(connection: apsw.Connection, after: str | None, limit: int) -> AuditPage:
    found = sqlite_connection.rows(connection, AUDITED, (after or sql_rows.AFTER_ALL, limit + 1))
    return sql_rows.audit_page([sql_rows.entry(row) for row in found], limit)


def has_entries_to_drop(connection: apsw.Connection, now: Instant) -> bool:
    return bool(sqlite_connection.value(connection, HAS_ENTRIES_BEFORE, (_oldest(now),)))


def drop_entries(tx: Tx, now: Instant, limit: int) -> None:
    tx.connection.execute(DROP_ENTRIES, (_oldest(now), limit))


def _oldest(now: Instant) -> str:
    return ids.floor(now - AUDIT_DAYS * 86_400 * MICROS)

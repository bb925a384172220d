"""API keys, the audit trail and totals on PostgreSQL.

Minutes of counters that are over are added to the sums before they are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from backstay import ids
from backstay.clock import MICROS, Instant
from backstay.core.records import ApiKey, AuditEntry, AuditPage, Total, Verdict
from backstay.engines import sql_rows
from backstay.engines.postgres.connection import Tx
from backstay.limits import AUDIT_DAYS


async def save_key(tx: Tx, key: ApiKey, new: bool) -> Verdict:
    if await tx.execute("save_key", *sql_rows.key_values(key), new) or await keys(tx, [key.key_id]) == [key]:
        return Verdict.APPLIED
    return Verdict.STALE


async def keys(tx: Tx, ids: Sequence[str]) -> list[ApiKey]:
    found = await tx.rows("keys_named", list(ids)) if ids else await tx.rows("keys")
    return [sql_rows.key(row) for row in found]


async def drop_keys(tx: Tx, ids: Sequence[str]) -> None:
    await tx.execute("drop_keys", list(ids))


async def audit(tx: Tx, entries: Sequence[AuditEntry]) -> None:
    ordered = sorted(
        entries, key=lambda entry: entry.entry_id
    )  # sorted, so that two concurrent writers cannot deadlock
    await tx.connection.executemany(tx.sql["audit"], [msgspec.structs.astuple(entry) for entry in ordered])


async def audited(tx: Tx, after: str | None, limit: int) -> AuditPage:
    found = await tx.rows("audited", after or sql_rows.AFTER_ALL, limit + 1)
    return sql_rows.audit_page([sql_rows.entry(row) for row in found], limit)


async def drop_entries(tx: Tx, now: Instant, limit: int) -> None:
    await tx.execute("audit_drop", ids.floor(now - AUDIT_DAYS * 86_400 * MICROS), limit)


async def totals(tx: Tx) -> list[Total]:
    return [sql_rows.total(*row) for row in await tx.rows("totals")]


async def sum_counters(tx: Tx, now: Instant) -> None:
    until, oldest = await _summed(tx)
    if sql_rows.next_span(until, oldest, now) is not None:
        await tx.execute("lock_names", [_totals_name(tx)])
        await add_up(tx, now)  # or submits of an hour that is summed now would be in no sum
        until, oldest = await _summed(tx)  # another process may have added them by now
        span = sql_rows.next_span(until, oldest, now)
        if span is not None:
            await tx.execute("sum_counters", *span)
            await tx.execute("tally_drop")
            await keep_until(tx, span[1])
            until = span[1]
    await tx.execute("counters_drop", sql_rows.droppable(until, now))


async def add_up(tx: Tx, now: Instant) -> None:
    """Add submits of past minutes to the counters and the tally. Only one process does so at a time, and none while
    another sums: it would not see them."""
    await tx.execute("add_up", now - now % sql_rows.MINUTE, _totals_name(tx))


def _totals_name(tx: Tx) -> str:
    return f"backstay totals {tx.sql.schema}"


async def keep_until(tx: Tx, until: Instant) -> None:
    await tx.execute("summed_save", until)


async def _summed(tx: Tx) -> tuple[Instant, Instant | None]:
    until, oldest = await tx.row("summed") or (0, None)
    return until, oldest

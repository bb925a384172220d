"""Keys of the HTTP API, and the trail of who changed what."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast import ids as job_ids
from holdfast.clock import MICROS, Instant
from holdfast.limits import AUDIT_DAYS
from holdfast.store.types import ApiKey, AuditEntry, AuditPage, Verdict
from holdfast.stores import access_rows
from holdfast.stores.postgres.tx import Tx


async def save_key(tx: Tx, key: ApiKey, new: bool) -> Verdict:
    if await tx.execute("save_key", *access_rows.key_values(key), new) or await keys(tx, [key.key_id]) == [key]:
        return Verdict.APPLIED
    return Verdict.STALE


async def keys(tx: Tx, ids: Sequence[str]) -> list[ApiKey]:
    found = await tx.rows("keys_named", list(ids)) if ids else await tx.rows("keys")
    return [access_rows.key(row) for row in found]


async def drop_keys(tx: Tx, ids: Sequence[str]) -> None:
    await tx.execute("drop_keys", list(ids))


async def audit(tx: Tx, entries: Sequence[AuditEntry]) -> None:
    ordered = sorted(
        entries, key=lambda entry: entry.entry_id
    )  # so that two who write the same do not lock in a circle
    await tx.connection.executemany(tx.sql["audit"], [msgspec.structs.astuple(entry) for entry in ordered])


async def audited(tx: Tx, after: str | None, limit: int) -> AuditPage:
    found = await tx.rows("audited", after or access_rows.AFTER_ALL, limit + 1)
    return access_rows.page([access_rows.entry(row) for row in found], limit)


async def drop(tx: Tx, now: Instant, limit: int) -> None:
    await tx.execute("audit_drop", job_ids.floor(now - AUDIT_DAYS * 86_400 * MICROS), limit)

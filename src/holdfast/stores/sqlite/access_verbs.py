"""The port's verbs on keys, the audit trail, and totals."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.types import ApiKey, AuditEntry, AuditPage, Total, Verdict
from holdfast.stores.sqlite import access, totalling
from holdfast.stores.sqlite.running import Running


class AccessVerbs(Running):
    async def save_key(self, key: ApiKey, *, new: bool = False) -> Verdict:
        return await self._write("save_key", lambda tx: access.save_key(tx, key, new), essential=not new)

    async def keys(self, ids: Sequence[str] = ()) -> list[ApiKey]:
        return await self._read(lambda c: access.keys(c, ids))

    async def drop_keys(self, ids: Sequence[str]) -> None:
        await self._write("drop_keys", lambda tx: access.drop_keys(tx, ids), essential=True)

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        await self._write("audit", lambda tx: access.audit(tx, entries), essential=True)

    async def audited(self, after: str | None, limit: int) -> AuditPage:
        return await self._read(lambda c: access.audited(c, after, limit))

    async def totals(self) -> list[Total]:
        return await self._read(totalling.totals)

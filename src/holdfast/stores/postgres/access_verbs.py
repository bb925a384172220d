"""The port's verbs on keys, the audit trail, and totals."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.types import ApiKey, AuditEntry, AuditPage, Total, Verdict
from holdfast.stores.postgres import access, totalling
from holdfast.stores.postgres.running import Running


class AccessVerbs(Running):
    async def save_key(self, key: ApiKey, *, new: bool = False) -> Verdict:
        return await self._write("save_key", lambda tx, _: access.save_key(tx, key, new))

    async def keys(self, ids: Sequence[str] = ()) -> list[ApiKey]:
        return await self._read(lambda tx: access.keys(tx, ids))

    async def drop_keys(self, ids: Sequence[str]) -> None:
        await self._write("drop_keys", lambda tx, _: access.drop_keys(tx, ids))

    async def audit(self, entries: Sequence[AuditEntry]) -> None:
        await self._write("audit", lambda tx, _: access.audit(tx, entries))

    async def audited(self, after: str | None, limit: int) -> AuditPage:
        return await self._read(lambda tx: access.audited(tx, after, limit))

    async def totals(self) -> list[Total]:
        return await self._read(totalling.totals)

"""The port's verbs on a queue that moves to another store, or into this one."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.moves import Exported, MoveState
from holdfast.stores.postgres import exporting
from holdfast.stores.postgres.running import Running


class MoveVerbs(Running):
    async def freeze(self, state: MoveState | None) -> int:
        return await self._write("freeze", lambda tx, _: exporting.freeze(tx, state))

    async def moving(self) -> MoveState | None:
        return await self._read(exporting.moving)

    async def export(self, kind: str, after: str | None, limit: int) -> Exported:
        return await self._read(lambda tx: exporting.export(tx, kind, after, limit))

    async def restore(self, kind: str, items: Sequence[bytes], state: MoveState) -> None:
        await self._write("restore", lambda tx, _: exporting.restore(tx, kind, items, state))

    def fit(self, kind: str, item: bytes) -> bytes:
        return item

"""The port's verbs on a queue that moves to another store, or into this one."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.moves import Exported, MoveState
from holdfast.stores.sqlite import exporting
from holdfast.stores.sqlite.running import Running


class MoveVerbs(Running):
    async def freeze(self, state: MoveState | None) -> int:
        return await self._write("freeze", lambda tx: exporting.freeze(tx, state), essential=True)

    async def moving(self) -> MoveState | None:
        return await self._read(exporting.moving)

    async def export(self, kind: str, after: str | None, limit: int) -> Exported:
        return await self._read(lambda c: exporting.export(c, kind, after, limit))

    async def restore(self, kind: str, items: Sequence[bytes], state: MoveState) -> None:
        await self._write("restore", lambda tx: exporting.restore(tx, kind, items, state), essential=False)

    def fit(self, kind: str, item: bytes) -> bytes:
        return item

"""A store that counts the workers and schedules that are read from it."""

from __future__ import annotations

from typing import Any

from backstay import Backstay


class RowsRead:
    def __init__(self, store: Any) -> None:
        self._store = store
        self.workers_read = self.schedules_read = 0

    @classmethod
    def of(cls, app: Backstay) -> RowsRead:
        """Stand between an app and its store."""
        app._store = found = cls(app.store)  # type: ignore[assignment]
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def workers(self, *given: Any, **named: Any) -> list[Any]:
        found: list[Any] = await self._store.workers(*given, **named)
        self.workers_read += len(found)
        return found

    async def schedules(self, *given: Any, **named: Any) -> list[Any]:
        found: list[Any] = await self._store.schedules(*given, **named)
        self.schedules_read += len(found)
        return found

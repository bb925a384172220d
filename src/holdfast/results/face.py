"""What an app does with results: reads rows and files, and declares the tables of its handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

import msgspec

from holdfast.errors import ArtifactNotFound, ConfigurationError, UnknownTable
from holdfast.files import Files, StoredFile
from holdfast.handlers import Handler
from holdfast.opened import Opened
from holdfast.results.reading import PAGE, RowsFound, TableResults, found_page, query_after, read
from holdfast.results.row import ResultRow, plain, table_of
from holdfast.store.port import Store
from holdfast.store.tables import ResultTable, RowPage, RowQuery

R = TypeVar("R", bound=ResultRow)
PlainRows = RowsFound[dict[str, Any]]


class Results(Opened):
    def results(self, table: type[R]) -> TableResults[R]:
        """The rows of a table: `await app.results(Point).all(job_id)`, `.get`, `.page`, `.latest`, `.by_subject`."""
        return TableResults(table, _OfStore(self.store))

    async def result_rows(self, job_id: str, table: str, after: str | None = None, limit: int = PAGE) -> PlainRows:
        """A page of a job's rows for those who have no model of the table: as dicts; `next` is for `after=`."""
        stored = {each.name.lower(): each for each in await self.store.result_tables()}
        found = stored.get(str(table).lower())
        if found is None:
            known = ", ".join(each.name for each in stored.values()) or "none at all"
            raise UnknownTable(f"there is no result table {table!r:.80}; there is {known}")
        page = await read(self.store, found, query_after(job_id, after, limit))
        return found_page([plain(found, row) for row in page.items], page)

    async def artifacts(self, job_id: str) -> list[StoredFile]:
        """The files that a job's handler kept with it."""
        record = (await self.get(job_id)).record
        return msgspec.json.decode(record.artifacts, type=list[StoredFile]) if record.artifacts else []

    async def artifact(self, job_id: str, name: str) -> bytes:
        """One of them whole, checked against the hash that was stored with it."""
        files, stored = await self._artifact(job_id, name)
        return await asyncio.to_thread(files.read, stored)

    async def open_artifact(self, job_id: str, name: str) -> AsyncIterator[bytes]:
        """`async for piece in app.open_artifact(job_id, "video")`: one of them in pieces. Where it is not what was
        stored, StoreError comes instead of the last."""
        files, stored = await self._artifact(job_id, name)
        pieces = files.stream(stored)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    async def _artifact(self, job_id: str, name: str) -> tuple[Files, StoredFile]:
        for stored in await self.artifacts(job_id):
            if stored.name == name and self._files is not None:
                return self._files, stored
        raise ArtifactNotFound(f"job {job_id} has no artifact {name!r}")


async def declare_tables(store: Store, handlers: Iterable[Handler]) -> None:
    """Those of the handlers, where they are not stored as they are declared."""
    if wanted := declared_by(handlers):
        await store.declare(wanted)


def declared_by(handlers: Iterable[Handler]) -> list[ResultTable]:
    found: dict[str, ResultTable] = {}
    for handler in handlers:
        for model in handler.results:
            table = table_of(model)
            if found.setdefault(table.name.lower(), table) != table:
                raise ConfigurationError(
                    f"{handler.name}: two models declare the result table {table.name}, and not the same way"
                )
    return list(found.values())


class _OfStore:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return await read(self._store, table, ask)

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return await self._store.rows_by_subject(table, subject, after, limit)

    async def latest(self, subject: str, job_type: str) -> str | None:
        return await self._store.latest(subject, job_type)

"""What an app does with results: reads rows and files, and declares the tables of its handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

import msgspec

from holdfast.errors import ArtifactNotFound, ConfigurationError, InvalidOption, UnknownTable
from holdfast.files import Files, StoredFile, parts
from holdfast.handlers import Handler
from holdfast.opened import Opened
from holdfast.results.reading import PAGE, RowsFound, TableResults, found_page, query, query_after, read
from holdfast.results.row import ResultRow, plain, table_of
from holdfast.results.tables import key_from, key_value
from holdfast.store.port import Store
from holdfast.store.tables import ResultTable, RowPage, RowQuery

R = TypeVar("R", bound=ResultRow)
PlainRows = RowsFound[dict[str, Any]]


class Results(Opened):
    def results(self, table: type[R]) -> TableResults[R]:
        """The rows of a table: `await app.results(Point).all(job_id)`, `.get`, `.page`, `.latest`, `.by_subject`."""
        return TableResults(table, _OfStore(self.store))

    async def result_rows(
        self, job_id: str, table: str, after: str | None = None, limit: int = PAGE, *, subject: str | None = None
    ) -> PlainRows:
        """A page of a job's rows for those who have no model of the table: as dicts; `next` is for `after=`."""
        found = await self._table(table)
        if subject is not None and found.subject is None:
            raise InvalidOption(f"{found.name} has no subject: leave it out")
        ask = msgspec.structs.replace(query_after(job_id, after, limit), subject=subject)
        page = await read(self.store, found, ask)
        return found_page([plain(found, row) for row in page.items], page)

    async def result_row(self, job_id: str, table: str, key: Any) -> dict[str, Any] | None:
        """One of them, by its key: a text will do for any kind of key."""
        found = await self._table(table)
        ask = query(job_id, key=key_value(found, key_from(found, key)), limit=1)
        page = await read(self.store, found, ask)
        return next((plain(found, row) for row in page.items), None)

    async def _table(self, name: str) -> ResultTable:
        stored = {each.name.lower(): each for each in await self.store.result_tables()}
        found = stored.get(str(name).lower())
        if found is None:
            known = ", ".join(each.name for each in stored.values()) or "none at all"
            raise UnknownTable(f"there is no result table {name!r:.80}; there is {known}")
        return found

    async def artifacts(self, job_id: str) -> list[StoredFile]:
        """The files that a job's handler kept with it."""
        record = (await self.get(job_id)).record
        return msgspec.json.decode(record.artifacts, type=list[StoredFile]) if record.artifacts else []

    async def artifact(self, job_id: str, name: str) -> bytes:
        """One of them whole, checked against the hash that was stored with it."""
        files, stored = await self._artifact(job_id, name)
        return await asyncio.to_thread(files.read, stored)

    async def open_artifact(
        self, job_id: str, name: str, start: int = 0, stop: int | None = None
    ) -> AsyncIterator[bytes]:
        """`async for piece in app.open_artifact(job_id, "video")`: one of them in pieces. Where it is not what was
        stored, StoreError comes instead of the last. Of a part, bytes from `start` on and before `stop`, nothing is
        known but its length."""
        files, stored = await self._artifact(job_id, name)
        stop = stored.size if stop is None else min(stop, stored.size)
        pieces = files.stream(stored) if (start, stop) == (0, stored.size) else parts(files, stored, start, stop)
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

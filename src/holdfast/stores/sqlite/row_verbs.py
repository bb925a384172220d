"""The port's verbs on result tables."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import Instant
from holdfast.store.tables import ResultTable, RowBatch, RowPage, RowQuery
from holdfast.store.types import Verdict
from holdfast.stores.sqlite import rows
from holdfast.stores.sqlite import tables as definitions
from holdfast.stores.sqlite.running import Running


class RowVerbs(Running):
    async def declare(self, tables: Sequence[ResultTable]) -> list[str]:
        return await self._write("declare", lambda tx: definitions.declare(tx, tables), essential=False)

    async def result_tables(self) -> list[ResultTable]:
        return await self._read(definitions.result_tables)

    async def put_rows(self, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
        return await self._write("put_rows", lambda tx: rows.put_rows(tx, batches, now), essential=False)

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return await self._read(lambda c: rows.rows(c, table, ask))

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return await self._read(lambda c: rows.rows_by_subject(c, table, subject, after, limit))

    async def latest(self, subject: str, job_type: str) -> str | None:
        return await self._read(lambda c: rows.latest(c, subject, job_type))

    async def drop_rows(self, job_id: str, limit: int) -> int:
        return await self._write("drop_rows", lambda tx: rows.drop_rows(tx, job_id, limit), essential=True)

"""The port's verbs on result tables."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import Instant
from holdfast.store.tables import ResultTable, RowBatch, RowPage, RowQuery
from holdfast.store.types import Verdict
from holdfast.stores.postgres import rows
from holdfast.stores.postgres import tables as definitions
from holdfast.stores.postgres.running import Running


class RowVerbs(Running):
    async def declare(self, tables: Sequence[ResultTable]) -> list[str]:
        return await self._write("declare", lambda tx, _: definitions.declare(tx, tables))

    async def result_tables(self) -> list[ResultTable]:
        return await self._read(definitions.result_tables)

    async def put_rows(self, batches: Sequence[RowBatch], now: Instant) -> list[Verdict]:
        return await self._at("put_rows", now, lambda tx, at: rows.put_rows(tx, batches, at))

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return await self._read(lambda tx: rows.rows(tx, table, ask))

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return await self._read(lambda tx: rows.rows_by_subject(tx, table, subject, after, limit))

    async def latest(self, subject: str, job_type: str) -> str | None:
        return await self._read(lambda tx: rows.latest(tx, subject, job_type))

    async def drop_rows(self, job_id: str, limit: int) -> int:
        return await self._write("drop_rows", lambda tx, _: rows.drop_rows(tx, job_id, limit))

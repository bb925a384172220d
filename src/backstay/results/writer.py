"""Writes the rows of a run to the store, in parts that fit into one commit.

They become visible when the job completes.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from backstay.core.records import ClaimedJob
from backstay.core.result_tables import ResultTable, Value
from backstay.errors import InvalidRow
from backstay.limits import ROWS_PART_BYTES_MAX, ROWS_PART_MAX
from backstay.results import model
from backstay.results.model import ResultRow, checked, table_of, values_of
from backstay.results.reader import BlockingSource, BlockingTableResults, Source, TableResults

R = TypeVar("R", bound=ResultRow)
Part = Sequence[tuple[Value, ...]]


class Putting(Source, Protocol):
    """The methods of a run's channel that rows need."""

    job: ClaimedJob

    async def put_rows(self, table: ResultTable, rows: Part) -> None: ...

    def refuse_rows(self, reason: str) -> None: ...


class BlockingPutting(BlockingSource, Protocol):
    job: ClaimedJob

    def put_rows(self, table: ResultTable, rows: Part) -> None: ...

    def refuse_rows(self, reason: str) -> None: ...


class Parts(Generic[R]):
    """Collects rows; returns a part as soon as it is full."""

    def __init__(self, model: type[R], job_id: str) -> None:
        self.count = 0
        self._model = model
        self._table = table_of(model)
        self._job_id = job_id
        self._sent = False
        self._start()

    def _start(self) -> None:
        self._rows: list[tuple[Value, ...]] = []
        self._bytes = 0

    def add(self, row: R | Mapping[str, Any]) -> Part | None:
        """Add a row; return the full part before it, if there is one."""
        values = values_of(checked(self._model, row), self._job_id)
        size = model.size_of(values)
        full = self._rows if len(self._rows) == ROWS_PART_MAX or self._bytes + size > ROWS_PART_BYTES_MAX else None
        if full:
            self._sent = True
            self._start()
        self._rows.append(values)
        self._bytes += size
        self.count += 1
        return full or None

    def rest(self) -> Part | None:
        """Return what is left; also for no rows at all, which are a result, too."""
        return self._rows if self._rows or not self._sent else None

    @contextmanager
    def whole(self, channel: Putting | BlockingPutting) -> Iterator[None]:
        """Store all rows or none: a put that fails halfway is not published, even if the handler catches the error and
        continues."""
        try:
            yield
        except Exception as error:
            if self._sent:
                channel.refuse_rows(f"{self._table.name}: a put failed after storing part of its rows: {error}")
            raise


class JobResults(TableResults[R]):
    """A run's rows of one table, and those of other jobs."""

    def __init__(self, model: type[R], channel: Putting) -> None:
        super().__init__(model, channel)
        self._channel = channel

    async def put(
        self,
        rows: Iterable[R | Mapping[str, Any]] | AsyncIterable[R | Mapping[str, Any]],
    ) -> int:
        """Store rows, models or dicts; return how many. They become visible when this job completes, and never if it
        fails; a later attempt stores its own."""
        parts = Parts(self._model, self._channel.job.job_id)
        with parts.whole(self._channel):
            if isinstance(rows, AsyncIterable):
                async for row in rows:
                    if full := parts.add(row):
                        await self._channel.put_rows(self._table, full)
            else:
                for row in _each(rows):
                    if full := parts.add(row):
                        await self._channel.put_rows(self._table, full)
            if (rest := parts.rest()) is not None:
                await self._channel.put_rows(self._table, rest)
        return parts.count


class BlockingJobResults(BlockingTableResults[R]):
    def __init__(self, model: type[R], channel: BlockingPutting) -> None:
        super().__init__(model, channel)
        self._channel = channel

    def put(self, rows: Iterable[R | Mapping[str, Any]]) -> int:
        """Store rows, models or dicts; return how many. See JobResults.put."""
        parts = Parts(self._model, self._channel.job.job_id)
        with parts.whole(self._channel):
            for row in _each(rows):
                if full := parts.add(row):
                    self._channel.put_rows(self._table, full)
            if (rest := parts.rest()) is not None:
                self._channel.put_rows(self._table, rest)
        return parts.count


def _each(rows: Any) -> Iterable[Any]:
    if isinstance(rows, ResultRow | Mapping | str | bytes) or not isinstance(rows, Iterable):
        raise InvalidRow(f"put takes many rows: write put([row]) for one, not {type(rows).__name__}")
    return rows

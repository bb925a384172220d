"""Rows that handlers put into result tables: written while they run, under their attempt, seen with its completion."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import Clock
from holdfast.errors import ClaimLost, DuplicateRow, InvalidRow, UnknownTable
from holdfast.limits import BATCH_ITEM_ROWS_BYTES_MAX, ROWS_PART_MAX
from holdfast.store.port import Store
from holdfast.store.tables import ResultTable, RowBatch, RowOrigin, Value
from holdfast.store.types import Verdict
from holdfast.worker.items import Item
from holdfast.worker.run import Run

Row = tuple[Value, ...]


class Rows:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def put(self, run: Run, table: ResultTable, rows: Sequence[Row]) -> None:
        """One part. What a job of a batch puts is kept until its call has answered: a call that breaks leaves none."""
        batch = _batch(run, table, rows)
        if isinstance(run, Item):
            _keep(run, batch)
        elif (await self._put([batch]))[0] is not Verdict.APPLIED:
            raise _lost(run)

    async def publish(self, items: Sequence[Item]) -> dict[Item, Exception]:
        """What the jobs of a call have put, many in one commit; those that must fail for it, and why."""
        failed: dict[Item, Exception] = {}
        waiting = [(item, batch) for item in items if not item.is_over for batch in item.kept_rows]
        while waiting:
            size = _fitting(waiting)
            now, waiting = waiting[:size], waiting[size:]
            try:
                verdicts = await self._put([batch for _, batch in now])
            except DuplicateRow as error:
                guilty = [item for item, _ in now if item.job.job_id == error.job_id]
                if not guilty:
                    raise
                failed[guilty[0]] = error
                waiting = [each for each in (*now, *waiting) if each[0] is not guilty[0]]
                continue
            for (item, _), verdict in zip(now, verdicts, strict=True):
                if verdict is not Verdict.APPLIED:
                    failed.setdefault(item, _lost(item))
        return failed

    async def _put(self, batches: Sequence[RowBatch]) -> list[Verdict]:
        try:
            return await self._store.put_rows(batches, self._clock.now())
        except UnknownTable:  # no handler names it in results=[…], so nobody has made it when the app opened
            await self._store.declare(list({batch.table.name: batch.table for batch in batches}.values()))
            return await self._store.put_rows(batches, self._clock.now())


def _batch(run: Run, table: ResultTable, rows: Sequence[Row]) -> RowBatch:
    run.row_parts = run.row_parts or {}
    part = run.row_parts.get(table.name, 0)
    run.row_parts[table.name] = part + 1
    job = run.job
    return RowBatch(run.hold, table, part, tuple(rows), RowOrigin(job.parent_job_id, job.root_job_id, job.job_stage))


def _keep(item: Item, batch: RowBatch) -> None:
    item.kept_bytes += sum(_size(row) for row in batch.rows)
    if item.kept_bytes > BATCH_ITEM_ROWS_BYTES_MAX:
        raise InvalidRow(
            f"job {item.job.job_id} of a batch has put more than {BATCH_ITEM_ROWS_BYTES_MAX:,} bytes of rows"
            " (BATCH_ITEM_ROWS_BYTES_MAX): use @app.job for jobs with so many"
        )
    item.kept_rows.append(batch)


def _fitting(waiting: Sequence[tuple[Item, RowBatch]]) -> int:
    """How many of them go into one commit; one at least."""
    rows = 0
    for count, (_, batch) in enumerate(waiting):
        rows += len(batch.rows)
        if rows > ROWS_PART_MAX and count:
            return count
    return len(waiting)


def _size(row: Row) -> int:
    return sum(len(value) if isinstance(value, str | bytes) else 8 for value in row)


def _lost(run: Run) -> ClaimLost:
    return ClaimLost(f"rows were not stored: this run no longer holds job {run.job.job_id}")

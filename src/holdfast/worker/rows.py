"""Rows that handlers put into result tables: written while they run, under their attempt, seen with its completion."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import Clock
from holdfast.errors import ClaimLost, DuplicateRow, InvalidRow, StoreMoved, UnknownTable
from holdfast.limits import BATCH_ITEM_ROWS_BYTES_MAX, ROWS_PART_MAX
from holdfast.store.port import Store
from holdfast.store.tables import ResultTable, RowBatch, RowOrigin, Value
from holdfast.store.types import Verdict
from holdfast.trouble import HOPELESS
from holdfast.worker.items import Item
from holdfast.worker.run import Run
from holdfast.worker.settler import OF_THE_STORE

Row = tuple[Value, ...]


class Rows:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def put(self, run: Run, table: ResultTable, rows: Sequence[Row]) -> None:
        """One part. What a job of a batch puts is kept until its call has answered: a call that breaks leaves none."""
        try:
            batch = _batch(run, table, rows)
            if isinstance(run, Item):
                _keep(run, batch)
            elif (await self._put([batch]))[0] is not Verdict.APPLIED:
                raise _lost(run)
        except Exception as error:
            # How much of it is stored depends on the engine: it must not be published, even if the handler goes on.
            run.rows_refused = run.rows_refused or error
            raise

    async def publish(self, items: Sequence[Item]) -> dict[Item, Exception]:
        """What the jobs of a call have put, many in one commit; those that must fail for it, and why."""
        failed = {item: item.rows_refused for item in items if item.rows_refused is not None}
        waiting = [(i, batch) for i in items if not i.is_over and i not in failed for batch in i.kept_rows]
        while waiting:
            size = _fitting(waiting)
            now, waiting = waiting[:size], waiting[size:]
            try:
                verdicts = await self._put([batch for _, batch in now])
            except (*OF_THE_STORE, *HOPELESS, StoreMoved):
                raise
            except Exception as error:
                guilty = _guilty(now, error)
                if guilty is None:  # whose row it is shows when they are put one by one
                    failed |= await self._publish_each(now)
                else:
                    failed[guilty] = error
                    waiting = [*now, *waiting]
                waiting = [each for each in waiting if each[0] not in failed]
                continue
            for (item, _), verdict in zip(now, verdicts, strict=True):
                if verdict is not Verdict.APPLIED:
                    failed.setdefault(item, _lost(item))
        return failed

    async def _publish_each(self, waiting: Sequence[tuple[Item, RowBatch]]) -> dict[Item, Exception]:
        failed: dict[Item, Exception] = {}
        for item, batch in waiting:
            if item in failed:
                continue
            try:
                [verdict] = await self._put([batch])
                if verdict is not Verdict.APPLIED:
                    failed[item] = _lost(item)
            except (*OF_THE_STORE, *HOPELESS, StoreMoved):
                raise
            except Exception as error:
                failed[item] = error
        return failed

    async def _put(self, batches: Sequence[RowBatch]) -> list[Verdict]:
        try:
            return await self._store.put_rows(batches, self._clock.now())
        except UnknownTable:  # no handler names it in results=[…], so nobody has made it when the app opened
            await self._store.declare(list({batch.table.name: batch.table for batch in batches}.values()))
            return await self._store.put_rows(batches, self._clock.now())


def _guilty(waiting: Sequence[tuple[Item, RowBatch]], error: Exception) -> Item | None:
    """Whose rows the error is about, if it can be told."""
    if len({item.job.job_id for item, _ in waiting}) == 1:
        return waiting[0][0]
    named = error.job_id if isinstance(error, DuplicateRow) else None
    return next((item for item, _ in waiting if item.job.job_id == named), None)


def _batch(run: Run, table: ResultTable, rows: Sequence[Row]) -> RowBatch:
    _refuse_repeated(run, table, rows)
    run.row_parts = run.row_parts or {}
    part = run.row_parts.get(table.name, 0)
    run.row_parts[table.name] = part + 1
    job = run.job
    return RowBatch(run.hold, table, part, tuple(rows), RowOrigin(job.parent_job_id, job.root_job_id, job.job_stage))


def _refuse_repeated(run: Run, table: ResultTable, rows: Sequence[Row]) -> None:
    """Within a part; what stands in another one, the store finds."""
    at = next(i for i, column in enumerate(table.columns) if column.name == table.key)
    seen: set[Value] = set()
    for row in rows:
        if row[at] in seen:
            job_id = run.job.job_id
            raise DuplicateRow(
                f"{table.name}: {table.key} {row[at]!r:.100} twice in one run of job {job_id}", job_id=job_id
            )
        seen.add(row[at])


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

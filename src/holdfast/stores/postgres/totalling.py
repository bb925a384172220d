"""Totals of the counters, and their upkeep: minutes that are over are added to the sums before they are dropped."""

from __future__ import annotations

from holdfast.clock import Instant
from holdfast.store.types import Total
from holdfast.stores import records, summing
from holdfast.stores.postgres.tx import Tx


async def totals(tx: Tx) -> list[Total]:
    return [records.total(*row) for row in await tx.rows("totals")]


async def keep_up(tx: Tx, now: Instant) -> None:
    until, oldest = await _summed(tx)
    if summing.next_span(until, oldest, now) is not None:
        await tx.execute("lock_names", [f"holdfast totals {tx.sql.schema}"])
        until, oldest = await _summed(tx)  # by now another may have added them
        span = summing.next_span(until, oldest, now)
        if span is not None:
            await tx.execute("sum_counters", *span)
            await keep_until(tx, span[1])
            until = span[1]
    await tx.execute("counters_drop", summing.droppable(until, now))


async def keep_until(tx: Tx, until: Instant) -> None:
    await tx.execute("summed_save", until)


async def _summed(tx: Tx) -> tuple[Instant, Instant | None]:
    until, oldest = await tx.row("summed") or (0, None)
    return until, oldest

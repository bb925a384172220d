"""What a verb sees of its transaction: a connection, the statements, the clock, and the signals to send after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg

from holdfast.clock import MICROS, Instant
from holdfast.counted import NO_BUCKET
from holdfast.lifecycle import Counted, Kind
from holdfast.store.types import Signal
from holdfast.stores.broods import Broods
from holdfast.stores.postgres.sql import Statements

_MINUTE = 60 * MICROS


class Tx:
    __slots__ = ("_counts", "broods", "connection", "signals", "sql", "unclean")

    def __init__(self, connection: Any, sql: Statements) -> None:
        self.connection: asyncpg.Connection[Any] = connection
        self.sql = sql
        self.signals: set[Signal] = set()
        self.unclean = False  # whether the session's state may have been changed by someone else's SQL
        self.broods = Broods()  # written by each verb: see releasing.spread
        self._counts: dict[tuple[Instant, Kind, Counted, int], list[int]] = {}

    async def execute(self, name: str, *values: Any) -> int:
        """Run a statement; how many rows it changed."""
        status = await self.connection.execute(self.sql[name], *values)
        return int(status.rpartition(" ")[2]) if status[-1:].isdigit() else 0

    async def rows(self, name: str, *values: Any) -> list[Any]:
        return await self.connection.fetch(self.sql[name], *values)

    async def row(self, name: str, *values: Any) -> Any | None:
        return await self.connection.fetchrow(self.sql[name], *values)

    async def value(self, name: str, *values: Any) -> Any:
        return await self.connection.fetchval(self.sql[name], *values)

    def count(
        self,
        kind: Kind,
        outcome: Counted,
        now: Instant,
        jobs: int = 1,
        ran: int = 0,
        waited: int = 0,
        bucket: int = NO_BUCKET,
    ) -> None:
        """Remembered here, written once per kind and bucket when the transaction ends, in its commit."""
        key = (now - now % _MINUTE, kind, outcome, bucket)
        sums = self._counts.setdefault(key, [0, 0, 0])
        sums[0] += jobs
        sums[1] += ran
        sums[2] += waited

    async def write_counters(self) -> None:
        if self._counts:
            await self.execute("count", *counter_columns(self._counts))


def counter_columns(counts: dict[tuple[Instant, Kind, Counted, int], list[int]]) -> Sequence[Any]:
    """In one order for everyone, so that two who write the same shard do not wait for each other in a circle."""
    ordered = sorted(
        (minute, *kind, outcome.value, bucket, *sums) for (minute, kind, outcome, bucket), sums in counts.items()
    )
    return [list(column) for column in zip(*ordered, strict=True)]

"""What a verb sees of its transaction: the connection, the signals to send once it is committed, and the counters."""

from __future__ import annotations

from typing import Any

import apsw

from holdfast.clock import MICROS, Instant
from holdfast.counted import NO_BUCKET
from holdfast.lifecycle import Counted, Kind
from holdfast.store.types import Signal
from holdfast.stores.broods import Broods
from holdfast.stores.sqlite import sql

COUNT = sql.load("count")
_MINUTE = 60 * MICROS


class Tx:
    __slots__ = ("_counts", "broods", "connection", "room", "signals")

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.signals: set[Signal] = set()
        self.room: dict[str, int] = {}  # of limited queues, as far as this transaction knows
        self.broods = Broods()  # written by each verb: see releasing.spread
        self._counts: dict[tuple[Instant, Kind, Counted, int], list[int]] = {}

    def execute(self, statement: str, bindings: apsw.Bindings | None = None) -> None:
        """Run a statement that answers nothing."""
        self.connection.execute(statement, bindings)

    def rows(self, statement: str, bindings: apsw.Bindings | None = None) -> list[tuple[Any, ...]]:
        return sql.rows(self.connection, statement, bindings)

    def row(self, statement: str, bindings: apsw.Bindings | None = None) -> tuple[Any, ...] | None:
        return sql.row(self.connection, statement, bindings)

    def value(self, statement: str, bindings: apsw.Bindings | None = None) -> Any:
        return sql.value(self.connection, statement, bindings)

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
        sums = self._counts.get(key)
        if sums is None:
            self._counts[key] = [jobs, ran, waited]
        else:
            sums[0] += jobs
            sums[1] += ran
            sums[2] += waited

    def write_counters(self) -> None:
        for (minute, (job_type, queue, priority), outcome, bucket), sums in self._counts.items():
            self.connection.execute(COUNT, (minute, job_type, queue, priority, outcome.value, bucket, *sums))

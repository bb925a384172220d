"""One job among those of a batch, and one call for many: what is said of each, and how the whole is stopped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from holdfast.batches import BatchHandler
from holdfast.store.tables import RowBatch
from holdfast.store.types import ClaimedJob
from holdfast.worker.execution import Execution
from holdfast.worker.lanes import Lane
from holdfast.worker.run import Run


class Item(Run):
    """A run that shares its call with others: stopping it drops its answer, and the call goes on for the rest."""

    call: Call | None = None
    payload: Any = None  # decoded, once it is known that it can be
    kept_bytes = 0

    def __init__(self, job: ClaimedJob, lane: Lane, token: str) -> None:
        super().__init__(job, lane, token)
        self.kept_rows: list[RowBatch] = []  # until the call has answered

    def unsay_effects(self) -> None:
        super().unsay_effects()
        self.kept_rows, self.kept_bytes, self.row_parts, self.rows_refused = [], 0, None, None

    def stop(self, reason: str) -> None:
        if self.stop_reason is None:
            self.stop_reason = reason
        if self.call is not None and not self.call.ended and all(each.stop_reason for each in self.call.items):
            self.call.stop(reason)

    @property
    def is_stopped(self) -> bool:
        return self.stop_reason is not None or (self.call is not None and self.call.is_stopped)


class Call(Execution):
    """One call of a batch handler. Its time is that of the least patient of its jobs."""

    ended = False

    def __init__(self, items: Sequence[Item], copies: Sequence[Item]) -> None:
        self.items = (*items, *copies)
        self.firsts = tuple(items)
        self.handler = cast(BatchHandler, items[0].handler)
        self.task = items[0].task
        for each in self.items:
            each.call = self

    @property
    def timeout_micros(self) -> int:
        return min(each.job.timeout_micros for each in self.items)

    @property
    def is_over(self) -> bool:
        return self.ended or all(each.is_over for each in self.items)

    def say_log(self, created: float | None, level: str, message: str, item: int | None = None) -> None:
        """To the job that it is about; without one, to all."""
        for each in self.items if item is None else self.firsts[item : item + 1]:
            each.say_log(created, level, message)

    def __repr__(self) -> str:
        return f"<Call of {self.handler.name} for {len(self.items)}>"

"""One attempt of one job, from its claim to its settlement."""

from __future__ import annotations

from holdfast.store.types import ClaimedJob
from holdfast.worker.execution import Execution
from holdfast.worker.lanes import Lane
from holdfast.worker.report import Report


class Run(Execution, Report):
    """Written by the event loop and, for progress and logs, by the handler's thread.

    Most runs never log, report or stop: what those need is a default of the class, not set for every job.
    """

    taken_at = 0.0  # on the event loop's clock
    lost = False
    settling = False
    row_parts: dict[str, int] | None = None  # how many batches of rows of each result table
    rows_refused: Exception | None = None  # a part of which not all is stored, and which must not be published

    def __init__(self, job: ClaimedJob, lane: Lane, token: str) -> None:
        self.job = job
        self.lane = lane
        self.handler = lane.handler
        self.token = token

    @property
    def has_effects(self) -> bool:
        """Whether its completion stores more than a result."""
        return bool(self.effects or self.artifacts or self.family or self.row_parts)

    def unsay_effects(self) -> None:
        """What would have come with the completion does not, for this call came to nothing."""
        self.effects = ()
        if self.family is not None:
            self.family.unsay()

    def unsay(self) -> None:
        """Drop what could not be stored."""
        self._logs = self.metrics = self.artifacts = None
        self.unsay_effects()

    @property
    def timeout_micros(self) -> int:
        return self.job.timeout_micros

    @property
    def is_over(self) -> bool:
        return self.settling or self.lost

    def __repr__(self) -> str:
        return f"<Run {self.job.job_type} {self.job.job_id} attempt {self.job.attempt}>"

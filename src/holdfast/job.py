"""Jobs as users see them: datetimes, decoded JSON, the names of the contract."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from holdfast.clock import Instant, to_datetime
from holdfast.lifecycle import TERMINAL, Event, Status
from holdfast.store.types import HistoryEvent, JobRecord

FIELDS = [
    "job_id",
    "job_type",
    "queue",
    "status",
    "priority",
    "payload",
    "subject",
    "tags",
    "created_by",
    "created_at",
    "updated_at",
    "scheduled_for",
    "started_at",
    "completed_at",
    "attempt",
    "failures",
    "max_attempts",
    "timeout_seconds",
    "version",
    "worker_id",
    "worker_version",
    "lease_expires_at",
    "progress",
    "stage",
    "result",
    "last_error",
    "errors",
    "logs",
    "metrics",
    "artifacts",
    "result_tables",
    "dedup_key",
    "deduplicated",
    "content_hash",
    "reused_from",
    "parent_job_id",
    "root_job_id",
    "job_stage",
    "child_count",
    "open_child_count",
    "waits_for",
    "trigger_rule",
    "on_dependency_failure",
    "dependencies",
    "dependent_jobs",
    "dependent_count",
    "processing_time_ms",
    "payload_version",
    "concurrency_key",
    "rate_key",
    "fairness_key",
    "schedule",
    "tick_at",
    "archived_at",
]


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


def _parsed(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


class JobView:
    """What a job's record and its handle share. Times are UTC; statuses equal their strings."""

    __slots__ = ("_record", "deduplicated")

    def __init__(self, record: JobRecord | Callable[[], JobRecord], *, deduplicated: bool = False) -> None:
        self._record = record
        self.deduplicated = deduplicated

    @property
    def record(self) -> JobRecord:
        """The record as it is stored; built when it is first asked for."""
        if not isinstance(self._record, JobRecord):
            self._record = self._record()
        return self._record

    @property
    def job_id(self) -> str:
        return self.record.job_id

    @property
    def job_type(self) -> str:
        return self.record.job_type

    @property
    def queue(self) -> str:
        return self.record.queue

    @property
    def status(self) -> Status:
        return self.record.status

    @property
    def priority(self) -> int:
        return self.record.priority

    @property
    def payload(self) -> Any:
        return _parsed(self.record.payload)

    @property
    def subject(self) -> str | None:
        return self.record.subject

    @property
    def tags(self) -> list[str]:
        return _parsed(self.record.tags) or []

    @property
    def created_by(self) -> str | None:
        return self.record.created_by

    @property
    def created_at(self) -> datetime:
        return to_datetime(self.record.created_at)

    @property
    def updated_at(self) -> datetime:
        return to_datetime(self.record.updated_at)

    @property
    def scheduled_for(self) -> datetime:
        return to_datetime(self.record.scheduled_for)

    @property
    def started_at(self) -> datetime | None:
        return _moment(self.record.started_at)

    @property
    def completed_at(self) -> datetime | None:
        return _moment(self.record.completed_at)

    @property
    def attempt(self) -> int:
        return self.record.attempt

    @property
    def failures(self) -> int:
        return self.record.failures

    @property
    def max_attempts(self) -> int:
        return self.record.max_attempts

    @property
    def timeout_seconds(self) -> float:
        return self.record.timeout_micros / 1_000_000

    @property
    def version(self) -> int:
        return self.record.version

    @property
    def worker_id(self) -> str | None:
        return self.record.worker_id

    @property
    def worker_version(self) -> str | None:
        return self.record.worker_version

    @property
    def lease_expires_at(self) -> datetime | None:
        return _moment(self.record.lease_expires_at)

    @property
    def progress(self) -> float:
        """What its handler said last; of one that said nothing, how many of its children have ended."""
        record = self.record
        if record.progress or not record.children or record.status in TERMINAL:
            return record.progress
        return rolled_up(record)

    @property
    def stage(self) -> str:
        return self.record.stage

    @property
    def last_error(self) -> str | None:
        return self.record.last_error

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [
            {
                "attempt": error.attempt,
                "at": to_datetime(error.at),
                "type": error.type,
                "message": error.message,
                "traceback": error.traceback,
            }
            for error in self.record.errors
        ]

    @property
    def logs(self) -> dict[str, Any]:
        return {"entries": _parsed(self.record.logs) or [], "log_location": self.record.log_location}

    @property
    def metrics(self) -> dict[str, float]:
        return _parsed(self.record.metrics) or {}

    @property
    def artifacts(self) -> list[str]:
        """Where the files lie that the handler kept with the job."""
        return [each["uri"] for each in _parsed(self.record.artifacts) or []]

    @property
    def result_tables(self) -> list[str]:
        """In which tables it may have rows."""
        return list(self.record.result_tables)

    @property
    def dedup_key(self) -> str | None:
        return self.record.dedup_key

    @property
    def content_hash(self) -> str | None:
        return self.record.content_hash

    @property
    def reused_from(self) -> str | None:
        return self.record.reused_from

    @property
    def parent_job_id(self) -> str | None:
        return self.record.parent_job_id

    @property
    def root_job_id(self) -> str | None:
        return self.record.root_job_id

    @property
    def job_stage(self) -> str | None:
        return self.record.job_stage

    @property
    def child_count(self) -> int:
        return self.record.children

    @property
    def open_child_count(self) -> int:
        """How many of its children have not ended."""
        return self.record.open_children

    @property
    def waits_for(self) -> str | None:
        """What a waiting job waits for: "dependencies" or "children"."""
        if self.record.status is not Status.WAITING:
            return None
        return "dependencies" if self.record.awaits is None else "children"

    @property
    def trigger_rule(self) -> str:
        return self.record.trigger_rule

    @property
    def on_dependency_failure(self) -> str:
        return self.record.on_dependency_failure

    @property
    def dependencies(self) -> list[str]:
        return list(self.record.dependencies)

    @property
    def dependent_jobs(self) -> list[str]:
        return list(self.record.dependent_jobs)

    @property
    def dependent_count(self) -> int:
        return self.record.dependent_count

    @property
    def processing_time_ms(self) -> int | None:
        return None if self.record.processing_micros is None else self.record.processing_micros // 1000

    @property
    def payload_version(self) -> int:
        return self.record.payload_version

    @property
    def concurrency_key(self) -> str | None:
        return self.record.concurrency_key

    @property
    def rate_key(self) -> str | None:
        return self.record.rate_key

    @property
    def fairness_key(self) -> str | None:
        return self.record.fairness_key

    @property
    def schedule(self) -> str | None:
        """The schedule that made it."""
        return self.record.schedule

    @property
    def tick_at(self) -> datetime | None:
        """For which of its ticks."""
        return _moment(self.record.tick_at)

    @property
    def archived_at(self) -> datetime | None:
        """Set where retention has been: payload, result, logs and history are gone."""
        return _moment(self.record.archived_at)

    @property
    def history(self) -> list[HistoryEntry]:
        return [HistoryEntry.of(event) for event in self.record.history]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.job_type} {self.job_id} {self.status.value}>"


def rolled_up(record: JobRecord, running: Sequence[JobRecord] = ()) -> float:
    """How far the children of a job are: those that have ended, and as far as they are known those that run."""
    ended = record.children - record.open_children
    under_way = sum(each.progress or (rolled_up(each) if each.children else 0.0) for each in running)
    return min(1.0, max(0.0, (ended + under_way) / max(1, record.children)))


class Job(JobView):
    """A job's record, as it was when it was read."""

    __slots__ = ("_large_result",)

    def __init__(self, record: JobRecord, large_result: Callable[[], str | None] | None = None) -> None:
        super().__init__(record)
        self._large_result = large_result

    @property
    def result(self) -> Any:
        """What the handler returned. A large result is read from its file, here and only when it is asked for."""
        return _parsed(self.result_text())

    def result_text(self) -> str | None:
        """The same as JSON."""
        if self.record.result_artifact is not None and self._large_result is not None:
            return self._large_result()
        return self.record.result

    def to_dict(self) -> dict[str, Any]:
        """The JSON fields of the contract."""
        return {name: getattr(self, name) for name in FIELDS}


class _Waits(Protocol):
    def result(self, job_id: str, timeout: float | timedelta | None = None) -> Awaitable[Any]: ...

    def get(self, job_id: str) -> Awaitable[Job]: ...


class JobHandle(JobView):
    """What submit gives back: the job as it was stored, and the way to its result."""

    __slots__ = ("_app", "_id")

    def __init__(
        self,
        app: _Waits,
        job_id: str,
        record: JobRecord | Callable[[], JobRecord],
        *,
        deduplicated: bool = False,
    ) -> None:
        self._app = app
        self._id = job_id
        self._record = record
        self.deduplicated = deduplicated

    @property
    def job_id(self) -> str:
        return self._id

    async def result(self, timeout: float | timedelta | None = None) -> Any:
        """Wait for the end. JobFailed, JobCancelled or ResultTimeout where there is no result."""
        return await self._app.result(self._id, timeout)

    async def refresh(self) -> Job:
        """The record as it is now."""
        return await self._app.get(self._id)


class HistoryEntry(msgspec.Struct, frozen=True):
    """One transition: what happened, when, in which attempt, by whom and why."""

    version: int
    at: datetime
    event: Event
    source: Status | None
    target: Status
    attempt: int
    by: str | None
    reason: str | None

    @classmethod
    def of(cls, event: HistoryEvent) -> HistoryEntry:
        return cls(
            event.version,
            to_datetime(event.at),
            event.event,
            event.source,
            event.target,
            event.attempt,
            event.by,
            event.reason,
        )

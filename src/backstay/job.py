"""Jobs as users see them: job, handle, history entry and children, with datetimes and decoded JSON."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    NoReturn,
    Protocol,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import msgspec
import pydantic
import typing_extensions
from msgspec import Meta

from backstay import codec, encryption
from backstay.clock import Instant, Moment, to_datetime
from backstay.core import dedup, event_details
from backstay.core.event_details import EventDetails
from backstay.core.records import ErrorEntry, HistoryEvent, JobRecord, Page
from backstay.core.states import TERMINAL, Event, Status
from backstay.core.waits import Ending, EventWait, awaits_of
from backstay.errors import InvalidOption, InvalidPayload, InvalidResult
from backstay.handlers import Handler, HandlerRef, P, R, explain_validation
from backstay.ops.wait import check_completed
from backstay.outcomes import Discard

if TYPE_CHECKING:
    from backstay.ops.audit import By
    from backstay.ops.events import SentEvent, StepEntry
    from backstay.ops.explanation import Explanation
    from backstay.ops.output import OutputEntry

T = TypeVar("T")
R_co = typing_extensions.TypeVar("R_co", covariant=True, default=Any)  # the result of a job that is waited for


class JobError(ErrorEntry, frozen=True):
    at: Moment  # type: ignore[assignment]  # an instant in the store


class JobLogs(msgspec.Struct, frozen=True):
    entries: list[dict[str, Any]]
    log_location: str | None


class JobDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A job's record."""

    job_id: str
    job_type: str
    queue: str
    status: Status
    priority: int
    payload: Any
    subject: str | None
    tags: list[str]
    created_by: str | None
    created_at: Moment
    updated_at: Moment
    scheduled_for: Moment
    started_at: Moment | None
    completed_at: Moment | None
    attempt: int
    failures: int
    max_attempts: int
    timeout_seconds: float
    version: int
    worker_id: str | None
    worker_version: str | None
    lease_expires_at: Moment | None
    progress: float
    stage: str
    result: Annotated[Any, Meta(description="What the handler returned. In lists, null if it is kept in a file.")]
    last_error: str | None
    errors: list[JobError]
    logs: JobLogs
    metrics: dict[str, float]
    artifacts: list[str]
    result_tables: list[str]
    dedup_key: str | None
    deduplicated: bool
    content_hash: str | None
    reused_from: str | None
    expires_at: Annotated[Moment | None, Meta(description="It is cancelled if it has not started by then.")]
    parent_job_id: str | None
    root_job_id: str | None
    job_stage: str | None
    child_count: int
    open_child_count: int
    waits_for: str | None
    trigger_rule: str
    on_dependency_failure: str
    dependencies: list[str]
    dependent_jobs: list[str]
    dependent_count: int
    processing_time_ms: int | None
    payload_version: int
    concurrency_key: str | None
    rate_key: str | None
    rate_cost: int
    fairness_key: str | None
    schedule: str | None
    tick_at: Moment | None
    archived_at: Moment | None


class ClaimedDocument(JobDocument, frozen=True, kw_only=True):
    """A claimed job: its record, with what a worker is told of it besides."""

    snoozes: int
    give_backs: int
    waits: int
    join: Annotated[str | None, Meta(description="The function to enter after a wait for its children.")]
    lost_at: Annotated[Moment | None, Meta(description="When its last worker was lost, if that was its last failure.")]
    traceparent: Annotated[str | None, Meta(description="The trace that it was submitted in.")]
    suspicion: Annotated[int, Meta(description="1 after it lost a worker, 2 if it runs alone for that; else 0.")]


JobDocument.__name__ = "Job"  # in the OpenAPI document
ClaimedDocument.__name__ = "ClaimedJob"
FIELDS = list(JobDocument.__struct_fields__)


def _moment(instant: Instant | None) -> datetime | None:
    return None if instant is None else to_datetime(instant)


def _parsed(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


class JobView:
    """What a job's record and its handle have in common. Times are UTC; statuses equal their strings."""

    __slots__ = ("_record", "deduplicated")

    def __init__(self, record: JobRecord | Callable[[], JobRecord], *, deduplicated: bool = False) -> None:
        self._record = record
        self.deduplicated = deduplicated

    @property
    def row(self) -> JobRecord:
        """The record as engines store it; built when it is first accessed."""
        if not isinstance(self._record, JobRecord):
            self._record = self._record()
        return self._record

    @property
    def job_id(self) -> str:
        return self.row.job_id

    @property
    def job_type(self) -> str:
        return self.row.job_type

    @property
    def queue(self) -> str:
        return self.row.queue

    @property
    def status(self) -> Status:
        return self.row.status

    @property
    def priority(self) -> int:
        return self.row.priority

    @property
    def payload(self) -> Any:
        """What it was submitted with, as plain JSON."""
        return _parsed(self.row.payload)

    @overload
    def payload_as(self, kind: HandlerRef[P, Any]) -> P: ...

    @overload
    def payload_as(self, kind: type[T]) -> T: ...

    def payload_as(self, kind: Any) -> Any:
        """Return the payload as its model: `job.payload_as(Summary)`. Given a handler, as what that handler receives,
        converted if it was stored by an older release."""
        if (handler := _handler_of(kind)) is not None:
            return handler.decode(self.row.payload, self.row.payload_version)
        text = encryption.plain(self.row.payload, self.row.job_type, encryption.PAYLOAD)
        try:
            return pydantic.TypeAdapter(kind).validate_json(text)
        except pydantic.ValidationError as error:
            raise InvalidPayload(f"payload of job {self.job_id}: {explain_validation(error)}") from None

    @property
    def subject(self) -> str | None:
        return self.row.subject

    @property
    def tags(self) -> list[str]:
        return _parsed(self.row.tags) or []

    @property
    def created_by(self) -> str | None:
        return self.row.created_by

    @property
    def created_at(self) -> datetime:
        return to_datetime(self.row.created_at)

    @property
    def updated_at(self) -> datetime:
        return to_datetime(self.row.updated_at)

    @property
    def scheduled_for(self) -> datetime:
        return to_datetime(self.row.scheduled_for)

    @property
    def started_at(self) -> datetime | None:
        return _moment(self.row.started_at)

    @property
    def completed_at(self) -> datetime | None:
        return _moment(self.row.completed_at)

    @property
    def attempt(self) -> int:
        return self.row.attempt

    @property
    def failures(self) -> int:
        return self.row.failures

    @property
    def max_attempts(self) -> int:
        return self.row.max_attempts

    @property
    def timeout_seconds(self) -> float:
        return self.row.timeout_micros / 1_000_000

    @property
    def version(self) -> int:
        return self.row.version

    @property
    def worker_id(self) -> str | None:
        return self.row.worker_id

    @property
    def worker_version(self) -> str | None:
        return self.row.worker_version

    @property
    def lease_expires_at(self) -> datetime | None:
        return _moment(self.row.lease_expires_at)

    @property
    def progress(self) -> float:
        """What the handler last reported; for one that reported nothing, the share of its children that have ended."""
        if (own := own_progress(self.row)) is not None:
            return own
        return rolled_up(self.row) if self.row.children else 0.0

    @property
    def stage(self) -> str:
        return self.row.stage

    @property
    def last_error(self) -> str | None:
        return self.row.last_error

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [msgspec.structs.asdict(error) | {"at": to_datetime(error.at)} for error in self.row.errors]

    @property
    def logs(self) -> dict[str, Any]:
        return {"entries": _parsed(self.row.logs) or [], "log_location": self.row.log_location}

    @property
    def metrics(self) -> dict[str, float]:
        return _parsed(self.row.metrics) or {}

    @property
    def artifacts(self) -> list[str]:
        """Where the files that the handler stored with the job are."""
        return [each["uri"] for each in _parsed(self.row.artifacts) or []]

    @property
    def result_tables(self) -> list[str]:
        """The tables in which it may have rows."""
        return list(self.row.result_tables)

    @property
    def expires_at(self) -> datetime | None:
        """By when it has to have started; None once it has, or if it does not expire."""
        return _moment(self.row.expires_at)

    @property
    def dedup_key(self) -> str | None:
        stored = self.row.dedup_key
        return stored and dedup.plain(stored, self.row.queue)

    @property
    def content_hash(self) -> str | None:
        return self.row.content_hash

    @property
    def reused_from(self) -> str | None:
        return self.row.reused_from

    @property
    def parent_job_id(self) -> str | None:
        return self.row.parent_job_id

    @property
    def root_job_id(self) -> str | None:
        return self.row.root_job_id

    @property
    def job_stage(self) -> str | None:
        return self.row.job_stage

    @property
    def child_count(self) -> int:
        return self.row.children

    @property
    def open_child_count(self) -> int:
        """How many of its children have not ended."""
        return self.row.open_children

    @property
    def waits_for(self) -> str | None:
        """What a waiting job waits for: "dependencies", "children" or "event"."""
        if self.row.status is not Status.WAITING:
            return None
        if self.row.awaits is None:
            return "dependencies"
        return "event" if isinstance(awaits_of(self.row.awaits), EventWait) else "children"

    @property
    def trigger_rule(self) -> str:
        return self.row.trigger_rule

    @property
    def on_dependency_failure(self) -> str:
        return self.row.on_dependency_failure

    @property
    def dependencies(self) -> list[str]:
        return list(self.row.dependencies)

    @property
    def dependent_jobs(self) -> list[str]:
        return list(self.row.dependent_jobs)

    @property
    def dependent_count(self) -> int:
        return self.row.dependent_count

    @property
    def processing_time_ms(self) -> int | None:
        return None if self.row.processing_micros is None else self.row.processing_micros // 1000

    @property
    def payload_version(self) -> int:
        return self.row.payload_version

    @property
    def concurrency_key(self) -> str | None:
        return self.row.concurrency_key

    @property
    def rate_key(self) -> str | None:
        return self.row.rate_key

    @property
    def rate_cost(self) -> int:
        """How much of its rate each start takes."""
        return self.row.rate_cost

    @property
    def fairness_key(self) -> str | None:
        return self.row.fairness_key

    @property
    def schedule(self) -> str | None:
        """The schedule that created it."""
        return self.row.schedule

    @property
    def tick_at(self) -> datetime | None:
        """The tick of that schedule."""
        return _moment(self.row.tick_at)

    @property
    def archived_at(self) -> datetime | None:
        """When retention archived it: payload, result, logs and history are then gone."""
        return _moment(self.row.archived_at)

    @property
    def history(self) -> list[HistoryEntry]:
        return [HistoryEntry.of(event) for event in self.row.history]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.job_type} {self.job_id} {self.status.value}>"


REPORTED_ZERO = 1e-6  # stored for a report of 0, because a record has 0 where nothing was reported


def own_progress(record: JobRecord) -> float | None:
    """Return what the handler reported; None if it reported nothing, or 0 before it began to wait for its children."""
    if record.progress > REPORTED_ZERO:
        return record.progress
    if record.status in TERMINAL or (record.progress and record.status is Status.PROCESSING):
        return 0.0
    return None


def rolled_up(record: JobRecord, running: Sequence[JobRecord] = ()) -> float:
    """Return the progress of a job's children: those that have ended and, as far as known, those that are running."""
    ended = record.children - record.open_children
    under_way = sum(own_progress(each) or (rolled_up(each) if each.children else 0.0) for each in running)
    return min(1.0, max(0.0, (ended + under_way) / max(1, record.children)))


class Job(JobView):
    """A job's record, as it was when it was read."""

    __slots__ = ("_large_result",)

    def __init__(self, record: JobRecord, large_result: Callable[[], str | None] | None = None) -> None:
        super().__init__(record)
        self._large_result = large_result

    @property
    def result(self) -> Any:
        """What the handler returned. A large result is read from its file, only when it is accessed."""
        return _parsed(self.result_text())

    @overload
    def result_as(self, kind: HandlerRef[Any, R]) -> R: ...

    @overload
    def result_as(self, kind: type[T]) -> T: ...

    def result_as(self, kind: Any) -> Any:
        """Return the result as a type, `job.result_as(Report)`, or as what a handler is declared to return. Raises
        JobFailed or JobCancelled if the job has no result."""
        check_completed(self.job_id, self.row)
        return decode_result(kind, self.job_id, self.result_text(), self.row.job_type)

    def result_text(self) -> str | None:
        """The result as JSON text."""
        if self.row.result_artifact is not None and self._large_result is not None:
            return self._large_result()
        return self.row.result

    def to_dict(self) -> dict[str, Any]:
        """Return the documented fields as JSON-compatible values."""
        return {name: getattr(self, name) for name in FIELDS}


def _handler_of(kind: Any) -> Handler | None:
    found = kind if isinstance(kind, Handler) else getattr(kind, "handler", None)
    return found if isinstance(found, Handler) else None


def decode_result(kind: Any, job_id: str, text: str | None, job_type: str) -> Any:
    """Return a stored result as a type, or as what a handler is declared to return."""
    if (handler := _handler_of(kind)) is not None:
        return handler.decode_result(text)
    text = "null" if text is None else encryption.plain(text, job_type, encryption.RESULT)
    try:
        return pydantic.TypeAdapter(kind).validate_json(text)
    except pydantic.ValidationError as error:
        raise InvalidResult(f"result of job {job_id}: {explain_validation(error, 'result')}") from None


# Documents. Payload and result are included as they are stored: a page of jobs is not parsed only to be written again.

_NULL = msgspec.Raw(b"null")


def document(job: JobView) -> JobDocument:
    """For codec.encode. A large result, which is kept in a file, is null here."""
    record = job.row
    return JobDocument(  # each by name: for a page of jobs, a loop over the names takes twice the time
        job_id=record.job_id,
        job_type=record.job_type,
        queue=record.queue,
        status=record.status,
        priority=record.priority,
        payload=raw(record.payload),
        subject=record.subject,
        tags=_parsed(record.tags) or [],
        created_by=record.created_by,
        created_at=to_datetime(record.created_at),
        updated_at=to_datetime(record.updated_at),
        scheduled_for=to_datetime(record.scheduled_for),
        started_at=_moment(record.started_at),
        completed_at=_moment(record.completed_at),
        attempt=record.attempt,
        failures=record.failures,
        max_attempts=record.max_attempts,
        timeout_seconds=record.timeout_micros / 1_000_000,
        version=record.version,
        worker_id=record.worker_id,
        worker_version=record.worker_version,
        lease_expires_at=_moment(record.lease_expires_at),
        progress=job.progress,
        stage=record.stage,
        result=raw(record.result),
        last_error=record.last_error,
        errors=[JobError(**each) for each in job.errors] if record.errors else [],
        logs=JobLogs(_parsed(record.logs) or [], record.log_location),
        metrics=_parsed(record.metrics) or {},
        artifacts=job.artifacts if record.artifacts else [],
        result_tables=list(record.result_tables),
        dedup_key=record.dedup_key and job.dedup_key,
        deduplicated=job.deduplicated,
        content_hash=record.content_hash,
        reused_from=record.reused_from,
        expires_at=_moment(record.expires_at),
        parent_job_id=record.parent_job_id,
        root_job_id=record.root_job_id,
        job_stage=record.job_stage,
        child_count=record.children,
        open_child_count=record.open_children,
        waits_for=job.waits_for if record.status is Status.WAITING else None,
        trigger_rule=record.trigger_rule,
        on_dependency_failure=record.on_dependency_failure,
        dependencies=list(record.dependencies),
        dependent_jobs=list(record.dependent_jobs),
        dependent_count=record.dependent_count,
        processing_time_ms=None if record.processing_micros is None else record.processing_micros // 1000,
        payload_version=record.payload_version,
        concurrency_key=record.concurrency_key,
        rate_key=record.rate_key,
        rate_cost=record.rate_cost,
        fairness_key=record.fairness_key,
        schedule=record.schedule,
        tick_at=_moment(record.tick_at),
        archived_at=_moment(record.archived_at),
    )


def whole(job: Job) -> JobDocument:
    """The same with a large result, which is read from its file: not for an event loop."""
    found = document(job)
    if job.row.result_artifact is None:
        return found
    return msgspec.structs.replace(found, result=raw(job.result_text()))


def raw(text: str | None) -> msgspec.Raw:
    """Return stored JSON as it is. If it was written by other means and is not JSON, it is returned as a string."""
    if text is None:
        return _NULL
    try:
        return codec.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError:
        return msgspec.Raw(codec.encode(text))


class EditOptions(TypedDict, total=False):
    """The keyword options of JobHandle.update and remove, as those of Backstay.update."""

    reason: str | None
    by: By
    expected_version: int | None


class ChangeOptions(EditOptions, total=False):
    """The keyword options of JobHandle.cancel, as those of Backstay.cancel."""

    subtree: bool


class RetryOptions(ChangeOptions, total=False):
    """The keyword options of JobHandle.retry, as those of Backstay.retry."""

    forget_steps: bool


class _App(Protocol):
    """The methods of an app that its jobs use."""

    def result(
        self, job_id: str, timeout: float | timedelta | None = None, *, as_type: Any = None
    ) -> Awaitable[Any]: ...

    def get(self, job_id: str) -> Awaitable[Job]: ...

    def wait(self, job_id: str, timeout: float | timedelta | None = None) -> Awaitable[Job]: ...

    def watch(self, job_id: str) -> AsyncGenerator[Job, None]: ...

    def stream_output(self, job_id: str, *, after: str | None = None) -> AsyncGenerator[OutputEntry, None]: ...

    def cancel(self, job_id: str, **options: Unpack[ChangeOptions]) -> Awaitable[Job]: ...

    def retry(self, job_id: str, **options: Unpack[RetryOptions]) -> Awaitable[Job]: ...

    def send_event(
        self, job: str, name: str, payload: Any = None, *, event_id: str | None = None, by: By = None
    ) -> Awaitable[SentEvent]: ...

    def steps(self, job_id: str) -> Awaitable[list[StepEntry]]: ...

    def update(self, job_id: str, payload: Any, **options: Unpack[EditOptions]) -> Awaitable[Job]: ...

    def remove(self, job_id: str, **options: Unpack[EditOptions]) -> Awaitable[None]: ...

    def explain(self, job_id: str) -> Awaitable[Explanation]: ...


class JobHandle(JobView, Generic[R_co]):
    """What submit returns: the job as it was stored, with methods that wait for it, read it and change it."""

    __slots__ = ("_app", "_id", "_type")

    def __init__(
        self,
        app: _App,
        job_id: str,
        record: JobRecord | Callable[[], JobRecord],
        *,
        deduplicated: bool = False,
        handler: Handler | None = None,
    ) -> None:
        self._app = app
        self._id = job_id
        self._type = handler
        self._record = record
        self.deduplicated = deduplicated

    @property
    def job_id(self) -> str:
        """Its id, which finds it again in any process: `app.get(job_id)`."""
        return self._id

    async def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait until the job has ended, and return its result as the type that its handler declares. Raises JobFailed,
        JobCancelled or ResultTimeout if there is no result."""
        return cast(R_co, await self._app.result(self._id, timeout, as_type=self._type))

    async def record(self) -> Job:
        """Read its record as it is now."""
        return await self._app.get(self._id)

    async def wait(self, timeout: float | timedelta | None = None) -> Job:
        """Wait until the job has ended, however it ended, and return its record. Raises ResultTimeout."""
        return await self._app.wait(self._id, timeout)

    def watch(self) -> AsyncGenerator[Job, None]:
        """Yield its record now, and again whenever its progress, stage or status has changed, up to its end: `async for
        now in job.watch(): print(now.progress, now.stage)`."""
        return self._app.watch(self._id)

    def stream(self, *, after: str | None = None) -> AsyncGenerator[OutputEntry, None]:
        """Yield what its handler has streamed and still streams, until it has ended: `async for entry in job.stream():
        print(entry.value)`. See Backstay.stream_output."""
        return self._app.stream_output(self._id, after=after)

    async def cancel(self, **options: Unpack[ChangeOptions]) -> Job:
        """Cancel it in any active state; a running handler is stopped. See Backstay.cancel."""
        return await self._app.cancel(self._id, **options)

    async def retry(self, **options: Unpack[RetryOptions]) -> Job:
        """Run it again after its end, with its attempts reset. See Backstay.retry."""
        return await self._app.retry(self._id, **options)

    async def send_event(
        self, name: str, payload: Any = None, *, event_id: str | None = None, by: By = None
    ) -> SentEvent:
        """Send it an event, for its `ctx.wait_for_event(name)`. See Backstay.send_event."""
        return await self._app.send_event(self._id, name, payload, event_id=event_id, by=by)

    async def steps(self) -> list[StepEntry]:
        """What its handler has recorded: steps, sleeps, and waits for events. See Backstay.steps."""
        return await self._app.steps(self._id)

    async def update(self, payload: Any, **options: Unpack[EditOptions]) -> Job:
        """Give it another payload while it waits. See Backstay.update."""
        return await self._app.update(self._id, payload, **options)

    async def remove(self, **options: Unpack[EditOptions]) -> None:
        """Erase it for good, with its files, rows and history. See Backstay.remove."""
        await self._app.remove(self._id, **options)

    async def explain(self) -> Explanation:
        """Why it is not running, or how it ended; `str()` of it is the sentence. See Backstay.explain."""
        return await self._app.explain(self._id)


class HistoryEntry(msgspec.Struct, frozen=True):
    """One transition: what happened, when, in which attempt, by whom and why."""

    version: int
    at: Moment
    event: Event
    source: Status | None
    target: Status
    attempt: int
    by: str | None
    reason: str | None
    forget_steps: Annotated[bool, Meta(description="A retry or rerun that started without the recorded steps.")]
    details: Annotated[EventDetails | None, Meta(description="Other jobs that it has to do with, and new values.")]

    @property
    def why(self) -> str | None:
        """In words: its details and its reason."""
        return event_details.why(self.details, self.forget_steps, self.reason)

    @classmethod
    def of(cls, event: HistoryEvent) -> HistoryEntry:
        return cls(**msgspec.structs.asdict(event) | {"at": to_datetime(event.at)})


LargeResult = Callable[[JobRecord], str | None]


class Submitted(msgspec.Struct, frozen=True):
    """A submitted child, as it is or will be stored."""

    record: JobRecord
    deduplicated: bool


class Ended(msgspec.Struct, frozen=True):
    """Children that were waited for and have ended: the first `named` that the run submitted, or all if 0. NONE: the
    wait was for no children at all, even if there are some by now."""

    NONE: ClassVar[int] = -1

    named: int
    total: int


class Waited(msgspec.Struct, frozen=True):
    """How a wait for an event ended, or what the job has to wait for, having seen this many events."""

    name: str
    ending: Ending | None
    wait: EventWait | None = None
    seen: int = 0


class Suspended(BaseException):
    """Raised by the methods of a context that wait: this run ends, and the job resumes when the wait is over.

    Not an Exception, so that a handler's `except Exception` does not swallow it.
    """


class SleepUntil(Suspended):
    """Raised by ctx.sleep()."""

    def __init__(self, name: str, until: Instant) -> None:
        super().__init__(f"sleeping: {name}")
        self.name, self.until = name, until


class WaitForEvent(Suspended):
    """Raised by ctx.wait_for_event()."""

    def __init__(self, wait: EventWait, seen: int) -> None:
        super().__init__(f"waiting for event {wait.name}")
        self.wait, self.seen = wait, seen


class WaitForChildren(Suspended):
    """Raised by ctx.wait_for_children()."""

    def __init__(self, trigger_rule: str, on_failure: str, join: str | None) -> None:
        super().__init__("waiting for its children")
        self.trigger_rule, self.on_failure, self.join = trigger_rule, on_failure, join


def unwrapped(error: BaseException) -> BaseException:
    """Return the wait inside an exception group: a wait raised in a task group comes out as a group. Groups may be
    nested to any depth."""
    found: Suspended | None = None
    left: list[BaseException] = [error]
    while left:
        each = left.pop()
        if issubclass(type(each), BaseExceptionGroup):
            left += each.exceptions  # type: ignore[attr-defined]
        elif issubclass(type(each), Suspended):
            found = each  # type: ignore[assignment]
        else:
            return error
    return found or error


class Child(JobView, Generic[R_co]):
    """A child that this handler has submitted: its id is known at once, and later children may depend on it. Its result
    is read after the wait: `children.result_of(child)`."""

    __slots__ = ("_type",)

    def __init__(self, submitted: Submitted, handler: Handler | None = None) -> None:
        super().__init__(submitted.record, deduplicated=submitted.deduplicated)
        self._type = handler

    def result(self, timeout: float | timedelta | None = None) -> NoReturn:
        """Refused: a run that waited for its own child would hold a slot that the child may need."""
        raise InvalidOption(
            f"this run holds a slot that its child {self.job_id} may need: wait for it with ctx.wait_for_children()"
        )


class _Loaded(Sequence[Job]):
    """The first of `total` children, read ahead. An access that would silently see only part of them raises, and says
    how to read all."""

    _all = ""

    def __init__(self, records: Sequence[JobRecord], total: int, large_result: LargeResult) -> None:
        self._large_result = large_result
        self._jobs = [self._job(record) for record in records]
        self._total = max(total, len(self._jobs))

    def _whole(self) -> list[Job]:
        if len(self._jobs) < self._total:
            raise InvalidOption(
                f"there are {self._total:,} children, and {len(self._jobs):,} are loaded: read all with `{self._all}`"
            )
        return self._jobs

    def _job(self, record: JobRecord) -> Job:
        return Job(record, lambda: self._large_result(record))

    def result_of(self, child: Child[R]) -> R:
        """Return the result of a child that this run submitted, as the type that its handler declares. Raises
        JobFailed or JobCancelled if the child has none."""
        job = next((each for each in self if each.job_id == child.job_id), None)
        if job is None:
            raise InvalidOption(f"job {child.job_id} is not among these {self._total:,} children")
        return cast(R, job.result_as(Any if child._type is None else child._type))

    @overload
    def __getitem__(self, place: int) -> Job: ...

    @overload
    def __getitem__(self, place: slice) -> list[Job]: ...

    def __getitem__(self, place: int | slice) -> Job | list[Job]:
        ahead = isinstance(place, int) and 0 <= place < len(self._jobs)
        return (self._jobs if ahead else self._whole())[place]

    def __iter__(self) -> Iterator[Job]:
        return iter(self._whole())

    def __len__(self) -> int:
        return self._total

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)}>"


class Children(_Loaded):
    """The children that existed when they were read. Up to 1,000 form a list; `async for` reads any number."""

    _all = "async for child in children"

    def __init__(
        self,
        records: Sequence[JobRecord],
        total: int,
        large_result: LargeResult,
        page: Callable[[str | None], Awaitable[Page]],
    ) -> None:
        super().__init__(records, total, large_result)
        self._page = page

    async def __aiter__(self) -> AsyncIterator[Job]:
        after: str | None = None
        while True:
            page = await self._page(after)
            for record in page.items:
                yield self._job(record)
            if (after := page.next) is None:
                return


class BlockingChildren(_Loaded):
    """The same for a plain `def`: `for job in ctx.children.all()` reads all."""

    _all = "for child in children.all()"

    def __init__(
        self, records: Sequence[JobRecord], total: int, large_result: LargeResult, page: Callable[[str | None], Page]
    ) -> None:
        super().__init__(records, total, large_result)
        self._page = page

    def all(self) -> Iterator[Job]:
        """Read all children, page by page."""
        after: str | None = None
        while True:
            page = self._page(after)
            yield from map(self._job, page.items)
            if (after := page.next) is None:
                return


def by_name(records: Sequence[JobRecord], large_result: LargeResult) -> dict[str, Job]:
    """Return jobs by stage, or by type where there is no stage. A duplicate name cannot be fixed by a retry, so it
    fails for good."""
    found: dict[str, Job] = {}
    for record in records:
        name = record.job_stage or record.job_type
        if name in found:
            raise Discard(f"this job has two dependencies called {name!r}: give each its own stage=")
        found[name] = _with_result(record, large_result)
    return found


def _with_result(record: JobRecord, large_result: LargeResult) -> Job:
    return Job(record, lambda: large_result(record))


def target_of(job_type: Any) -> str | Handler:
    """Return a type by its name or handler, or by an object that represents one: a handler of a blocking app, a
    pipeline."""
    if isinstance(job_type, str):
        return job_type
    if (handler := _handler_of(job_type)) is None:
        raise InvalidOption(f"{job_type!r:.80} is not a job type: give a name or a handler")
    return handler


def join_name(join: Any) -> str | None:
    """Return the name of a join, given as a name or as the function itself."""
    if join is None or isinstance(join, str):
        return join
    return str(getattr(join, "__name__", join))

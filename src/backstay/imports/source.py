"""What a source of an import provides: its jobs as `Work`, page by page, and what cannot be mapped."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol

import msgspec

from backstay import codec
from backstay.clock import Instant, to_instant
from backstay.core.records import FOREVER
from backstay.core.states import Status
from backstay.errors import BackstayError, InvalidPayload

RUNNING = "it was running: counted as a failed attempt, runs again"


class Unmappable(BackstayError):
    """A row of the source that cannot become a job, and why. Rows with the same reason are counted together, so the
    reason does not name the row."""


Whole = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Moment = Annotated[Instant, msgspec.Meta(ge=0, le=9_999_999_999_999_999)]  # 1970 to 2286: sixteen digits, as in a key


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """A job of the source. What is None is not known to the source: then the job type's own setting is used. `read`
    checks these types."""

    source_id: str
    state: str  # in the words of the source
    job_type: str
    payload: Any
    args: tuple[Any, ...] = ()  # positional arguments; `payload` then holds those with a name
    status: Status  # PROCESSING if a worker of the source runs it
    created_at: Moment
    due_at: Moment | None = None  # None: at once
    started_at: Moment | None = None  # of the last attempt
    ended_at: Moment | None = None
    attempt: Whole = 0  # how often it has started
    failures: Whole = 0
    max_attempts: Whole | None = None
    timeout_seconds: float | None = None
    priority: int | None = None
    queue: str | None = None
    subject: str | None = None
    tags: tuple[str, ...] = ()
    created_by: str | None = None
    stage: str | None = None  # its stage in a workflow
    content_hash: str | None = None
    result: Any = None
    error: str | None = None  # a message, "Type: message", or a traceback
    worker_id: str | None = None
    worker_version: str | None = None
    progress: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    step: str = ""  # what its progress last said
    metrics: dict[str, float] = {}
    logs: tuple[dict[str, Any], ...] = ()  # timestamp, level, message
    log_location: str | None = None
    version: Whole | None = None
    dedup_key: str | None = None
    dedup_until: Instant | None = None  # None: while it is active
    depends_on: tuple[str, ...] = ()  # ids of the source …
    unfinished: tuple[str, ...] = ()  # … and those of them that have not ended: it waits for them
    lock: str | None = None  # one job at a time of those with the same lock
    note: str = ""  # what happens to it, if its state does not say


class Unmapped(msgspec.Struct, frozen=True, kw_only=True):
    """A row that cannot be imported."""

    source_id: str
    state: str
    reason: str


Row = Work | Unmapped


# What reading a value of the wrong kind raises, whatever the source.
_MISREAD = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, zlib.error)


def read(source_id: Any, state: Any, work: Callable[[], Work]) -> Row:
    """Return what a row of the source becomes. One that is not as its system makes them is listed with the reason: it
    must not keep all others from being imported."""
    try:
        found = work()
        msgspec.convert(msgspec.structs.asdict(found), Work)
        if found.dedup_until not in (None, FOREVER):
            msgspec.convert(found.dedup_until, Moment)
        return found
    except Unmappable as error:
        reason = str(error)
    except msgspec.ValidationError as error:
        reason = f"it is not as its system makes them: {_mistyped(error)}"
    except _MISREAD as error:
        reason = f"it is not as its system makes them ({type(error).__name__})"
    return Unmapped(source_id=codec.clean(str(source_id)), state=codec.clean(str(state or "")), reason=reason)


def _mistyped(error: msgspec.ValidationError) -> str:
    """Return which value has a wrong type, without where exactly: that differs from row to row."""
    expected, _, where = str(error).partition(" - at `$.")
    name = where.rstrip("`").partition("[")[0].partition(".")[0]
    return f"{name}: {expected[:1].lower()}{expected[1:]}" if name else expected


class Source(Protocol):
    """What every source implements."""

    @property
    def location(self) -> str:
        """Where it is, for display: contains no secrets."""
        ...

    async def open(self) -> None:
        """Connect, read-only. ConfigurationError if there is no such queue."""
        ...

    async def close(self) -> None: ...

    async def count(self) -> int:
        """Return how many rows `pages` will yield, about: for a progress bar."""
        ...

    def pages(self) -> AsyncIterator[list[Row]]:
        """Yield every job of the source once, in pages of up to PAGE; may be called again. The same row always makes
        the same Work."""
        ...

    @property
    def has_dependencies(self) -> bool:
        """Whether jobs may wait for others."""
        ...

    def notes(self) -> list[str]:
        """Return what else a person should know of it, once all pages were read."""
        ...


def moment(value: Any, name: str) -> Instant | None:
    """Read a time: ISO 8601 text or a datetime. One without a zone is taken as UTC. Empty means None."""
    if value is None or value == "":
        return None
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise Unmappable(f"{name} is not an ISO 8601 time") from None
    return to_instant(found if found.tzinfo is not None else found.replace(tzinfo=UTC))


def required(value: Instant | None, name: str) -> Instant:
    if value is None:
        raise Unmappable(f"it has no {name}")
    return value


def document(value: Any, name: str) -> Any:
    """Read a value that a source keeps as a document or as the JSON text of one."""
    if not isinstance(value, str | bytes):
        return value
    try:
        return codec.from_json(value, name)
    except InvalidPayload:
        raise Unmappable(f"{name} is not JSON") from None


def known(states: dict[str, Status], state: Any, name: str = "status") -> Status:
    """Return what a state of the source is called here."""
    if state not in states:
        raise Unmappable(f"unknown {name} {state!r:.40}")
    return states[state]


def text(value: Any) -> str | None:
    """Return a text; None if it is absent or empty."""
    return None if value is None or value == "" else str(value)


def named(value: Any, name: str) -> str:
    """Return a text that must be there."""
    if not isinstance(value, str) or not value:
        raise Unmappable(f"it has no {name}")
    return value


def fraction(value: Any, name: str) -> float:
    """Return a number from 0 to 1; one beyond is taken as the nearest of these."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise Unmappable(f"{name} is not a number")
    return min(1.0, max(0.0, float(value)))


def priority_around(value: Any, name: str = "priority") -> int:
    """Return the priority of a system where 0 is usual and more is sooner, without bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Unmappable(f"{name} is not a whole number")
    return min(100, max(0, 50 + value))


def whole(value: Any, name: str, usual: int = 0) -> int:
    """Return a whole number that is not negative."""
    if value is None:
        return usual
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Unmappable(f"{name} is not a whole number")
    return value

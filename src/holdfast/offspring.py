"""Children as a handler sees them: those it submits, and those that are stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn, overload

import msgspec

from holdfast.errors import InvalidOption
from holdfast.handlers import Handler
from holdfast.job import Job, JobView
from holdfast.outcomes import Discard
from holdfast.store.types import JobRecord, Page

LargeResult = Callable[[JobRecord], str | None]


class Submitted(msgspec.Struct, frozen=True):
    """What a worker says to a child that was submitted: as it is stored, or will be."""

    record: JobRecord
    deduplicated: bool


class Ended(msgspec.Struct, frozen=True):
    """Children that were waited for and have ended: the first `named` that the run has submitted; with 0, all."""

    named: int
    total: int


class WaitForChildren(BaseException):
    """Raised by ctx.wait_for_children(): the run ends here, and goes on when the children have ended. No Exception, so
    that a handler's `except Exception` does not swallow it."""

    def __init__(self, trigger_rule: str, on_failure: str, join: str | None) -> None:
        super().__init__("waits for its children")
        self.trigger_rule, self.on_failure, self.join = trigger_rule, on_failure, join


def unwrapped(error: BaseException) -> BaseException:
    """A wait in a task group comes out as a group; one that holds nothing else is a wait."""
    if not isinstance(error, BaseExceptionGroup) or error.split(WaitForChildren)[1] is not None:
        return error
    return unwrapped(error.exceptions[0])


class Child(JobView):
    """A child that this handler has submitted: its id is known at once, and later children may depend on it."""

    __slots__ = ()

    def __init__(self, submitted: Submitted) -> None:
        super().__init__(submitted.record, deduplicated=submitted.deduplicated)

    def result(self, timeout: float | timedelta | None = None) -> NoReturn:
        """A run that waited for its own child would hold a slot that the child may need."""
        raise InvalidOption(
            f"this run holds a slot that its child {self.job_id} may need: wait for it with ctx.wait_for_children()"
        )


class _Loaded(Sequence[Job]):
    """As many as were read ahead, of `total`: what would silently be a part raises, and says how all are read."""

    _all = ""

    def __init__(self, records: Sequence[JobRecord], total: int, large_result: LargeResult) -> None:
        self._large_result = large_result
        self._jobs = [self._job(record) for record in records]
        self._total = max(total, len(self._jobs))

    def _whole(self) -> list[Job]:
        if len(self._jobs) < self._total:
            raise InvalidOption(
                f"there are {self._total:,} children, and {len(self._jobs):,} are read ahead: read all with"
                f" `{self._all}`"
            )
        return self._jobs

    def _job(self, record: JobRecord) -> Job:
        return Job(record, lambda: self._large_result(record))

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
    """The children that were stored when they were read. Up to 1,000 are a list; `async for` reads however many."""

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
        after: str | None = None
        while True:
            page = self._page(after)
            yield from map(self._job, page.items)
            if (after := page.next) is None:
                return


def by_name(records: Sequence[JobRecord], large_result: LargeResult) -> dict[str, Job]:
    """Jobs by their stage, else by their type. Two of one name stay two however often it is tried: no more attempts."""
    found: dict[str, Job] = {}
    for record in records:
        name = record.job_stage or record.job_type
        if name in found:
            raise Discard(f"this job depends on two that are called {name!r}: submit each with its own stage=")
        found[name] = _with_result(record, large_result)
    return found


def _with_result(record: JobRecord, large_result: LargeResult) -> Job:
    return Job(record, lambda: large_result(record))


def target_of(job_type: Any) -> str | Handler:
    """A type by its name or its handler, or by what stands for one: a handler of a blocking app, a pipeline."""
    if isinstance(job_type, str | Handler):
        return job_type
    inner = getattr(job_type, "handler", None)
    if not isinstance(inner, Handler):
        raise InvalidOption(f"{job_type!r:.80} is no job type: give a name or a handler")
    return inner


def join_name(join: Any) -> str | None:
    """A join as a handler names it: by its name, or as the function itself."""
    if join is None or isinstance(join, str):
        return join
    return str(getattr(join, "__name__", join))

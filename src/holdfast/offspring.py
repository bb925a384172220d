"""Children as a handler sees them: those it submits, and those that are stored."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn, overload

import msgspec

from holdfast.errors import InvalidOption
from holdfast.handlers import Handler
from holdfast.job import Job, JobView
from holdfast.store.types import JobRecord, Page

LargeResult = Callable[[JobRecord], str | None]


class Submitted(msgspec.Struct, frozen=True):
    """What a worker says to a child that was submitted: as it is stored, or will be."""

    record: JobRecord
    deduplicated: bool


class WaitForChildren(BaseException):
    """Raised by ctx.wait_for_children(): the run ends here, and goes on when the children have ended. No Exception, so
    that a handler's `except Exception` does not swallow it."""

    def __init__(self, trigger_rule: str, on_failure: str, join: str | None) -> None:
        super().__init__("waits for its children")
        self.trigger_rule, self.on_failure, self.join = trigger_rule, on_failure, join


class Child(JobView):
    """A child that this handler has submitted: its id is known at once, and later children may depend on it."""

    __slots__ = ()

    def __init__(self, submitted: Submitted) -> None:
        super().__init__(submitted.record, deduplicated=submitted.deduplicated)

    def result(self, timeout: float | timedelta | None = None) -> NoReturn:
        """A run that waited for its own child would hold a slot that the child may need."""
        raise InvalidOption(
            f"child {self.job_id} is stored with this job's completion: wait for it with ctx.wait_for_children()"
        )


class _Loaded(Sequence[Job]):
    def __init__(self, records: Sequence[JobRecord], large_result: LargeResult) -> None:
        self._large_result = large_result
        self._jobs = [self._job(record) for record in records]

    def _job(self, record: JobRecord) -> Job:
        return Job(record, lambda: self._large_result(record))

    @overload
    def __getitem__(self, place: int) -> Job: ...

    @overload
    def __getitem__(self, place: slice) -> list[Job]: ...

    def __getitem__(self, place: int | slice) -> Job | list[Job]:
        return self._jobs[place]

    def __len__(self) -> int:
        return len(self._jobs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)}>"


class Children(_Loaded):
    """The children that were stored when they were read, by id: up to 1,000 of them here; `async for` reads all."""

    def __init__(
        self,
        records: Sequence[JobRecord],
        large_result: LargeResult,
        page: Callable[[str | None], Awaitable[Page]],
    ) -> None:
        super().__init__(records, large_result)
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

    def __init__(
        self, records: Sequence[JobRecord], large_result: LargeResult, page: Callable[[str | None], Page]
    ) -> None:
        super().__init__(records, large_result)
        self._page = page

    def all(self) -> Iterator[Job]:
        after: str | None = None
        while True:
            page = self._page(after)
            yield from map(self._job, page.items)
            if (after := page.next) is None:
                return


def by_name(records: Sequence[JobRecord], large_result: LargeResult) -> dict[str, Job]:
    """Jobs by their stage, else by their type."""
    found: dict[str, Job] = {}
    for record in records:
        name = record.job_stage or record.job_type
        if name in found:
            raise InvalidOption(f"this job depends on two that are called {name!r}: give each its own stage")
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

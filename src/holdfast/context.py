"""The context a handler gets. One interface, three ways to reach the worker: directly, from a thread, over a pipe.

`Context` is for `async def`; `BlockingContext`, the same names without await, for `def`. Both speak to a `Channel`,
which the worker provides.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, Unpack, cast, overload

from holdfast import codec, effects
from holdfast.contents import AsyncSource, Source
from holdfast.errors import ClaimLost, EffectFailed, InvalidOption, InvalidResult
from holdfast.files import check_name
from holdfast.handlers import Handler
from holdfast.job import Job
from holdfast.lifecycle import Effect, Status
from holdfast.limits import NAME_LENGTH_MAX
from holdfast.offspring import (
    BlockingChildren,
    Child,
    Children,
    Ended,
    Submitted,
    WaitForChildren,
    by_name,
    join_name,
    target_of,
)
from holdfast.results.putting import BlockingJobResults, JobResults
from holdfast.results.row import ResultRow
from holdfast.store.tables import ResultTable, RowPage, RowQuery, Value
from holdfast.store.types import ClaimedJob, JobRecord, Page
from holdfast.submission import SubmitOptions
from holdfast.trees import Awaits, TriggerRule

T = TypeVar("T")
R = TypeVar("R", bound=ResultRow)
JOB_LOGGER = "holdfast.job"
ITEM = "holdfast_item"  # of a log record: which job of a batch it is about


class Channel(Protocol):
    """How a context reaches its worker. The first three never block and never fail."""

    job: ClaimedJob

    def progress(self, fraction: float, stage: str | None) -> None: ...

    def metric(self, name: str, value: float) -> None: ...

    def cancelled(self) -> bool: ...

    def effects(self, statements: list[Effect]) -> None: ...

    def refuse_rows(self, reason: str) -> None: ...

    def loaded_children(self) -> list[JobRecord]: ...

    def large_result(self, record: JobRecord) -> str | None: ...

    def join_of(self, asked: str | None) -> str | None: ...


class AsyncChannel(Channel, Protocol):
    async def step(self, name: str) -> str | None: ...

    async def record_step(self, name: str, answer: str) -> bool: ...

    async def artifact(self, name: str, source: AsyncSource) -> str: ...

    async def submit(
        self, job_type: str | Handler, payload: Any, key: str | None, at_once: bool, options: SubmitOptions
    ) -> Submitted: ...

    async def children(self, after: str | None, named: int = 0) -> Page: ...

    async def ended(self, awaits: Awaits) -> Ended | None: ...

    async def upstream(self) -> list[JobRecord]: ...

    async def put_rows(self, table: ResultTable, rows: Sequence[tuple[Value, ...]]) -> None: ...

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage: ...

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage: ...

    async def latest(self, subject: str, job_type: str) -> str | None: ...


class BlockingChannel(Channel, Protocol):
    def step(self, name: str) -> str | None: ...

    def record_step(self, name: str, answer: str) -> bool: ...

    def artifact(self, name: str, source: Source) -> str: ...

    def submit(
        self, job_type: str | Handler, payload: Any, key: str | None, at_once: bool, options: SubmitOptions
    ) -> Submitted: ...

    def children(self, after: str | None, named: int = 0) -> Page: ...

    def ended(self, awaits: Awaits) -> Ended | None: ...

    def upstream(self) -> list[JobRecord]: ...

    def put_rows(self, table: ResultTable, rows: Sequence[tuple[Value, ...]]) -> None: ...

    def rows(self, table: ResultTable, ask: RowQuery) -> RowPage: ...

    def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage: ...

    def latest(self, subject: str, job_type: str) -> str | None: ...


class Transaction:
    """Statements that commit with the completion, and only if the claim still holds then.

    They are kept until the handler has returned and run in the completion's own transaction, so they cannot read.
    A block that raises keeps none of its statements.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._statements: list[Effect] = []

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> None:
        if not isinstance(statement, str):
            raise TypeError("a statement is a text; values go into the parameters")
        if (word := effects.control_word(statement)) is not None:
            raise EffectFailed(
                f"{word} in ctx.transaction(): its statements commit with the job, all or none; leave it out",
                job_id=self._channel.job.job_id,
            )
        self._statements.append((statement, tuple(effects.kept(value) for value in parameters)))

    def executemany(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        for row in rows:
            self.execute(statement, row)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._statements:
            self._channel.effects(self._statements)

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(self, kind: object, *rest: object) -> None:
        self.__exit__(kind, *rest)


class Done:
    """Done already; may be awaited or not."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


DONE = Done()


class _ContextFields:
    __slots__ = ("_channel", "_job")

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._job: Job | None = None

    @property
    def job_id(self) -> str:
        return self._channel.job.job_id

    @property
    def attempt(self) -> int:
        return self._channel.job.attempt

    @property
    def job(self) -> Job:
        """The job as it was claimed."""
        if self._job is None:
            self._job = Job(_record(self._channel.job))
        return self._job

    @property
    def log(self) -> logging.Logger:
        """Its lines are kept on the job, like those of any stdlib logger inside the handler."""
        return logging.getLogger(JOB_LOGGER)

    @property
    def cancelled(self) -> bool:
        """True when this run should end: cancelled, timed out, or its claim was lost. A thread must look."""
        return self._channel.cancelled()

    @property
    def idempotency_key(self) -> str:
        """The same over all attempts: pass it to services that drop repeats."""
        return f"holdfast-{self._channel.job.job_id}"

    def progress(self, fraction: float, stage: str | None = None) -> Done:
        """Say how far the job is (0 to 1). Live at once in this process, durable within about a second."""
        self._channel.progress(fraction, stage)
        return DONE

    def transaction(self) -> Transaction:
        """`async with ctx.transaction() as tx: tx.execute("INSERT …", […])`: SQL that commits with the job."""
        return Transaction(self._channel)

    def metric(self, name: str, value: float) -> Done:
        """Keep a number with the job: `ctx.metric("tokens", 1234)`."""
        self._channel.metric(name, float(value))
        return DONE


class Context(_ContextFields):
    """For `async def` handlers."""

    __slots__ = ()

    @overload
    async def once(self, name: str, fn: Callable[[], Awaitable[T]]) -> T: ...

    @overload
    async def once(self, name: str, fn: Callable[[], T]) -> T: ...

    async def once(self, name: str, fn: Callable[[], Any]) -> Any:
        """Run a step and keep its answer: a later attempt gets the answer and does not run the step again.

        The step itself still runs at least once: a crash between its effect and the record repeats it.
        """
        channel = cast(AsyncChannel, self._channel)
        recorded = await channel.step(_step_name(name))
        if recorded is not None:
            return codec.decode(recorded)
        value = fn()
        if inspect.isawaitable(value):
            value = await value
        answer = _answer(name, value)
        if not await channel.record_step(name, answer):
            raise ClaimLost(f"step {name!r}: this run no longer holds job {self.job_id}")
        return codec.decode(answer)

    def results(self, table: type[R]) -> JobResults[R]:
        """`await ctx.results(Point).put(rows)`: rows that others see with this job's completion; and those of other
        jobs, `await ctx.results(Point).all(job_id)`."""
        return JobResults(table, cast(AsyncChannel, self._channel))

    async def artifact(self, name: str, data: AsyncSource) -> str:
        """Keep a file with the job; its URI. A second attempt writes it anew.

        From bytes, a text, a Path, an open file, or an iterable or async iterable of bytes: streamed, and iterated in a
        thread where it is not async.
        """
        return await cast(AsyncChannel, self._channel).artifact(check_name(name), data)

    # Children

    async def submit(
        self,
        job_type: str | Handler,
        payload: Any = None,
        *,
        key: str | None = None,
        at_once: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Child:
        """Submit a child of this job. It is stored with this job's completion (or with its wait), and not at all if
        this run comes to nothing; `at_once=True` stores it now.

        Its id follows from this job, the type and the payload, or from `key`: a run that is repeated, and a handler
        that is entered again after `wait_for_children`, gets the same children and makes none twice. Equal ones of one
        run are told apart by counting. Give a key where the payload differs from run to run (a time of day, a random
        number), or where the same work is wanted once more.
        """
        channel = cast(AsyncChannel, self._channel)
        return Child(await channel.submit(target_of(job_type), payload, key, at_once, options))

    @property
    def children(self) -> Children:
        """The children that were stored when this run began: up to 1,000 of them; `async for` reads all."""
        channel = cast(AsyncChannel, self._channel)
        return Children(channel.loaded_children(), channel.job.children, channel.large_result, channel.children)

    async def wait_for_children(
        self,
        *,
        trigger_rule: str = "all_done",
        on_child_failure: str = "fail",
        join: str | Callable[..., Any] | None = None,
    ) -> Children:
        """End this run until every child has ended, without a slot, a lease or a failure; then the handler is entered
        again from the top, and this call returns the children that this run has submitted before it, in that order; all
        that are stored, where it has submitted none. Where they have ended it returns at once.

        With `join`, the function registered by `@handler.join` is entered instead; where there is only one, by itself.
        With trigger_rule="all_success" or "none_failed" a child that ended badly fails this job (on_child_failure=
        "cancel": cancels it) instead of entering it again.
        """
        channel = cast(AsyncChannel, self._channel)
        awaits = _awaits(trigger_rule, on_child_failure)
        joining = channel.join_of(join_name(join))
        ended = await channel.ended(awaits)
        if ended is None or joining not in (None, channel.job.join):  # a join goes on even if nothing is open any more
            raise WaitForChildren(awaits.rule.value, awaits.on_failure, joining)
        first = await channel.children(None, ended.named)
        page = partial(channel.children, named=ended.named)
        return Children(first.items, ended.total if first.next else 0, channel.large_result, page)

    async def upstream(self) -> dict[str, Job]:
        """What this job depends on, by stage, else by type: `(await ctx.upstream())["PCA"].job_id`. Where two have the
        same name, the job fails for good: submit each with its own stage."""
        channel = cast(AsyncChannel, self._channel)
        return by_name(await channel.upstream(), channel.large_result)


class BlockingContext(_ContextFields):
    """For plain `def` handlers, in a thread or a process."""

    __slots__ = ()

    def once(self, name: str, fn: Callable[[], T]) -> T:
        """Run a step and keep its answer; see Context.once."""
        channel = cast(BlockingChannel, self._channel)
        recorded = channel.step(_step_name(name))
        if recorded is not None:
            return cast(T, codec.decode(recorded))
        answer = _answer(name, fn())
        if not channel.record_step(name, answer):
            raise ClaimLost(f"step {name!r}: this run no longer holds job {self.job_id}")
        return cast(T, codec.decode(answer))

    def results(self, table: type[R]) -> BlockingJobResults[R]:
        """Rows that others see with this job's completion, and those of other jobs; see Context.results."""
        return BlockingJobResults(table, cast(BlockingChannel, self._channel))

    def artifact(self, name: str, data: Source) -> str:
        """Keep a file with the job; its URI. From bytes, a text, a Path, an open file, or an iterable of bytes."""
        return cast(BlockingChannel, self._channel).artifact(check_name(name), data)

    def submit(
        self,
        job_type: str | Handler,
        payload: Any = None,
        *,
        key: str | None = None,
        at_once: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Child:
        """Submit a child of this job; see Context.submit."""
        channel = cast(BlockingChannel, self._channel)
        return Child(channel.submit(target_of(job_type), payload, key, at_once, options))

    @property
    def children(self) -> BlockingChildren:
        """The children that were stored when this run began: up to 1,000 of them; `.all()` reads all."""
        channel = cast(BlockingChannel, self._channel)
        return BlockingChildren(channel.loaded_children(), channel.job.children, channel.large_result, channel.children)

    def wait_for_children(
        self,
        *,
        trigger_rule: str = "all_done",
        on_child_failure: str = "fail",
        join: str | Callable[..., Any] | None = None,
    ) -> BlockingChildren:
        """End this run until every child has ended; see Context.wait_for_children."""
        channel = cast(BlockingChannel, self._channel)
        awaits = _awaits(trigger_rule, on_child_failure)
        joining = channel.join_of(join_name(join))
        ended = channel.ended(awaits)
        if ended is None or joining not in (None, channel.job.join):  # a join goes on even if nothing is open any more
            raise WaitForChildren(awaits.rule.value, awaits.on_failure, joining)
        first = channel.children(None, ended.named)
        page = partial(channel.children, named=ended.named)
        return BlockingChildren(first.items, ended.total if first.next else 0, channel.large_result, page)

    def upstream(self) -> dict[str, Job]:
        """What this job depends on, by stage, else by type."""
        channel = cast(BlockingChannel, self._channel)
        return by_name(channel.upstream(), channel.large_result)


def _awaits(trigger_rule: str, on_child_failure: str) -> Awaits:
    rules = [each.value for each in TriggerRule if each is not TriggerRule.ONE_SUCCESS]
    if trigger_rule not in rules:
        raise InvalidOption(
            f"trigger_rule={trigger_rule!r}: a parent waits for all: use all_done, all_success or none_failed"
        )
    if on_child_failure not in ("fail", "cancel"):
        raise InvalidOption(f"on_child_failure={on_child_failure!r}: use fail or cancel")
    return Awaits(TriggerRule(trigger_rule), on_child_failure)


def _step_name(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX:
        raise ValueError(f"step name {name!r:.80}: use a text of 1 to {NAME_LENGTH_MAX} characters")
    return name


def _answer(name: str, value: Any) -> str:
    try:
        return codec.to_json(value, f"answer of step {name!r}")
    except Exception as error:
        raise InvalidResult(str(error)) from None


def _record(job: ClaimedJob) -> JobRecord:
    return JobRecord(
        job_id=job.job_id,
        job_type=job.job_type,
        queue=job.queue,
        status=Status.PROCESSING,
        priority=job.priority,
        payload=job.payload,
        created_at=job.created_at,
        updated_at=job.started_at,
        started_at=job.started_at,
        worker_id=job.worker_id,
        scheduled_for=job.scheduled_for,
        attempt=job.attempt,
        failures=job.failures,
        snoozes=job.snoozes,
        give_backs=job.give_backs,
        max_attempts=job.max_attempts,
        timeout_micros=job.timeout_micros,
        version=job.version,
        lease_expires_at=job.lease_expires_at,
        logs=job.logs,
        artifacts=job.artifacts,
        subject=job.subject,
        tags=job.tags,
        created_by=job.created_by,
        job_stage=job.job_stage,
        dedup_key=job.dedup_key,
        content_hash=job.content_hash,
        parent_job_id=job.parent_job_id,
        root_job_id=job.root_job_id,
        payload_version=job.payload_version,
        schedule=job.schedule,
        tick_at=job.tick_at,
        children=job.children,
        waits=job.waits,
    )

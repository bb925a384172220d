"""The context that a handler receives: for coroutines, for threads, and for batch handlers.

`Context` is for `async def`; `BlockingContext`, with the same names without await, is for `def`. Both reach the run
through a `Channel`, which the worker provides: a direct call, a call from a thread, or a pipe from a child process. A
batch handler receives a `BatchContext` for the call as a whole, with an `ItemContext` for each of its jobs.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Generic, NoReturn, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

import pydantic
from typing_extensions import TypeVar as TypeVarWithDefault

from backstay import codec, typed_json
from backstay.clock import MICROS, Instant, micros
from backstay.core import step_values
from backstay.core.checks import check_text
from backstay.core.dependencies import Awaits, TriggerRule
from backstay.core.records import ClaimedJob, Effect, JobRecord, Page, shared
from backstay.core.result_tables import ResultTable, RowPage, RowQuery, Value
from backstay.core.states import Status
from backstay.errors import ClaimLost, EffectFailed, EventTimeout, InvalidEvent, InvalidOption, InvalidResult
from backstay.files.local import AsyncSource, Source, check_name
from backstay.files.references import ArtifactRef
from backstay.handlers import Handler, HandlerRef, P, explain_validation
from backstay.handlers import R as Result
from backstay.job import (
    BlockingChildren,
    Child,
    Children,
    Ended,
    Job,
    SleepUntil,
    Submitted,
    Waited,
    WaitForChildren,
    WaitForEvent,
    by_name,
    join_name,
    target_of,
)
from backstay.limits import DELAY_SECONDS_MAX, KEY_LENGTH_MAX, NAME_LENGTH_MAX
from backstay.options import SubmitOptions
from backstay.results.model import ResultRow
from backstay.results.writer import BlockingJobResults, JobResults

T = TypeVar("T")
A = ParamSpec("A")
R = TypeVar("R", bound=ResultRow)
# What the lifespan of the app yields. The default is not Any: in mypy, an argument with Any matches all overloads.
State = TypeVarWithDefault("State", default=object, covariant=True)
JOB_LOGGER = "backstay.job"
ITEM = "backstay_item"  # of a log record: which job of a batch it is about


class Channel(Protocol):
    """How a context reaches its worker. The first three never block and never fail."""

    job: ClaimedJob

    @property
    def state(self) -> Any: ...

    def progress(self, fraction: float, stage: str | None) -> None: ...

    def metric(self, name: str, value: float) -> None: ...

    def cancelled(self) -> bool: ...

    def effects(self, statements: list[Effect]) -> None: ...

    def refuse_rows(self, reason: str) -> None: ...

    def loaded_children(self) -> list[JobRecord]: ...

    def large_result(self, record: JobRecord) -> str | None: ...

    def join_of(self, asked: str | None) -> str | None: ...


class AsyncChannel(Channel, Protocol):
    async def stream(self, entry: str) -> None: ...

    async def artifact_ref(self, name: str) -> dict[str, Any]: ...

    async def read_artifact(self, reference: dict[str, Any]) -> bytes: ...

    async def step(self, name: str) -> str | None: ...

    async def record_step(self, name: str, answer: str) -> bool: ...

    async def sleep(self, name: str, micros: int) -> tuple[str, Instant] | None: ...

    async def wait_for_event(
        self, name: str, key: str | None, timeout_micros: int | None, schema: str | None
    ) -> Waited: ...

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
    def stream(self, entry: str) -> None: ...

    def artifact_ref(self, name: str) -> dict[str, Any]: ...

    def read_artifact(self, reference: dict[str, Any]) -> bytes: ...

    def step(self, name: str) -> str | None: ...

    def record_step(self, name: str, answer: str) -> bool: ...

    def sleep(self, name: str, micros: int) -> tuple[str, Instant] | None: ...

    def wait_for_event(self, name: str, key: str | None, timeout_micros: int | None, schema: str | None) -> Waited: ...

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

    They are buffered until the handler has returned, and run in the completion's own transaction, so they cannot read.
    A block that raises discards its statements.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._statements: list[Effect] = []
        self._is_open = False

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> None:
        """Add a statement."""
        if not self._is_open:
            raise EffectFailed(
                "ctx.transaction() is used outside of its block, where its statements would be lost: write `async with"
                " ctx.transaction() as tx: tx.execute(…)`, or `with` in a `def`",
                job_id=self._channel.job.job_id,
            )
        if not isinstance(statement, str):
            raise TypeError("a statement is a string; pass values as parameters")
        if (word := step_values.control_word(statement)) is not None:
            raise EffectFailed(
                f"{word} in ctx.transaction(): its statements commit with the job, all or none; remove it",
                job_id=self._channel.job.job_id,
            )
        self._statements.append((statement, tuple(step_values.kept(value) for value in parameters)))

    def executemany(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Add a statement for each row of parameters."""
        for row in rows:
            self.execute(statement, row)

    def __enter__(self) -> Transaction:
        self._is_open = True
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._is_open = False
        statements, self._statements = self._statements, []
        if kind is None and statements:
            self._channel.effects(statements)

    async def __aenter__(self) -> Transaction:
        return self.__enter__()

    async def __aexit__(self, kind: object, *rest: object) -> None:
        self.__exit__(kind, *rest)


class Done:
    """Already done; may be awaited or not."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


DONE = Done()


class _ContextFields(Generic[State]):
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
    def state(self) -> State:
        """What the function registered with `@app.lifespan` has yielded in this process."""
        return cast(State, self._channel.state)

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
        return f"backstay-{self._channel.job.job_id}"

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


class DurableSteps:
    """Steps, sleeps and events of an `async def` handler: what a context of any worker can do."""

    __slots__ = ()

    _channel: Any

    @property
    def job_id(self) -> str:
        raise NotImplementedError

    @overload
    async def step(self, name: str, fn: Callable[A, Awaitable[T]], /, *args: A.args, **kwargs: A.kwargs) -> T: ...

    @overload
    async def step(self, name: str, fn: Callable[A, T], /, *args: A.args, **kwargs: A.kwargs) -> T: ...

    async def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, `await ctx.step("charge", charge, order)`, and record what it returns: a later attempt gets
        the recorded value, as the type that the function declares to return, and does not call it again.

        The function may still run more than once: a crash between its effect and the record repeats it. A name stands
        for one answer: give each step of a loop its own.
        """
        channel = cast(AsyncChannel, self._channel)
        recorded = await channel.step(_step_name(name))
        if recorded is not None:
            return _decoded(name, fn, recorded)
        value = fn(*args, **kwargs)
        if inspect.isawaitable(value):
            value = await value
        answer = _answer(name, value)
        if not await channel.record_step(name, answer):
            raise ClaimLost(f"step {name!r}: this run no longer holds job {self.job_id}")
        return _decoded(name, fn, answer)

    once = step

    async def sleep(self, name: str, span: float | timedelta) -> None:
        """End this attempt, and run the handler again from the top after this time; then this call returns at once:
        `await ctx.sleep("cooldown", timedelta(days=3))`. A sleeping job holds no slot and counts no failure. The
        second sleep of a name in one run is another sleep, so that a loop may use one name."""
        channel = cast(AsyncChannel, self._channel)
        if (left := await channel.sleep(_step_name(name), _span(span))) is not None:
            raise SleepUntil(*left)

    @overload
    async def wait_for_event(
        self,
        name: str,
        *,
        type: type[T],
        key: str | None = None,
        timeout: float | timedelta | None = None,
    ) -> T: ...

    @overload
    async def wait_for_event(
        self, name: str, *, key: str | None = None, timeout: float | timedelta | None = None
    ) -> Any: ...

    async def wait_for_event(
        self,
        name: str,
        *,
        type: Any = Any,
        key: str | None = None,
        timeout: float | timedelta | None = None,
    ) -> Any:
        """Return the payload of the next event of this name that was sent to this job (app.send_event), or to `key`.
        If none has come, end this attempt without a slot or a failure; the handler runs again from the top when one
        comes, and this call returns its payload, as `type`.

        Each event is received by one wait, and a later attempt gets the same one again. The second wait for a name in
        one run gets the next event. After `timeout`, counted from the first time that the handler came here, it raises
        EventTimeout; a payload that does not fit `type` raises InvalidEvent.
        """
        channel = cast(AsyncChannel, self._channel)
        return _event(
            name, type, await channel.wait_for_event(*_event_options(name, key, timeout), typed_json.schema_of(type))
        )

    async def stream(self, value: Any) -> None:
        """Append a value to the output of this job, which others read while it runs and afterwards: the tokens of a
        language model, say. It is stored within about a tenth of a second, and before the completion. When the job runs
        again, what that attempt streams replaces what this one did."""
        await cast(AsyncChannel, self._channel).stream(stream_entry(value))


class Context(_ContextFields[State], DurableSteps):
    """The context of an `async def` handler; `Context[State]` where the app has a lifespan that yields a State."""

    __slots__ = ()

    def results(self, table: type[R]) -> JobResults[R]:
        """Write rows that become visible when this job completes: `await ctx.results(Point).put(rows)`; read rows of
        other jobs: `await ctx.results(Point).all(job_id)`."""
        return JobResults(table, cast(AsyncChannel, self._channel))

    async def artifact(self, name: str, data: AsyncSource) -> str:
        """Store a file with the job and return its URI. A second attempt overwrites it. Accepts bytes, a string, a
        Path, an open file, or an iterable or async iterable of bytes: streamed, and iterated in a thread if it is not
        async."""
        return await cast(AsyncChannel, self._channel).artifact(check_name(name), data)

    async def artifact_ref(self, name: str) -> ArtifactRef:
        """Return a reference to a file that this job has stored, to pass on in a result or a payload."""
        return ArtifactRef(**await cast(AsyncChannel, self._channel).artifact_ref(check_name(name)))

    async def read_artifact(self, ref: ArtifactRef) -> bytes:
        """Read a file of another job by reference: of a job of this tree, of one that this job depends on, or of one in
        its queue; of up to 64 MiB. Raises ArtifactNotFound if there is no such file, or another one by now, and
        StoreError if its content is not what was stored."""
        return await cast(AsyncChannel, self._channel).read_artifact(ref.model_dump())

    # Children

    @overload
    async def submit(
        self,
        job_type: HandlerRef[P, Result],
        payload: P,
        *,
        key: str | None = None,
        at_once: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Child[Result]: ...

    @overload
    async def submit(
        self,
        job_type: HandlerRef[None, Result],
        payload: None = None,
        *,
        key: str | None = None,
        at_once: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Child[Result]: ...

    @overload
    async def submit(
        self,
        job_type: str,
        payload: Any = None,
        *,
        key: str | None = None,
        at_once: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Child: ...

    async def submit(
        self,
        job_type: Any,
        payload: Any = None,
        *,
        key: str | None = None,
        at_once: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Child[Any]:
        """Submit a child of this job. It is stored with this job's completion (or with its wait), and not at all if
        this run fails; `at_once=True` stores it now.

        Its id is derived from this job, the type and the payload, or from `key`: a repeated run, and a handler that
        runs again after `wait_for_children`, gets the same children and creates no duplicates. Identical children of
        one run are numbered. Give a key if the payload differs from run to run (a time of day, a random number), or if
        the same work is wanted once more.
        """
        channel = cast(AsyncChannel, self._channel)
        target = target_of(job_type)
        submitted = await channel.submit(target, payload, key, at_once, options)
        return Child(submitted, None if isinstance(target, str) else target)

    @property
    def children(self) -> Children:
        """The children that existed when this run began: up to 1,000 of them; `async for` reads all."""
        channel = cast(AsyncChannel, self._channel)
        return Children(channel.loaded_children(), channel.job.children, channel.large_result, channel.children)

    async def wait_for_children(
        self,
        *,
        trigger_rule: str = "all_done",
        on_child_failure: str = "fail",
        join: str | Callable[..., Any] | None = None,
    ) -> Children:
        """Suspend this job until every child has ended, without a slot, a lease or a failure. The handler then runs
        again from the top, and this call returns the children that this run submitted before it, in that order, or all
        stored children if it submitted none. If they have already ended, or if there were none when this call was
        first made, it returns at once.

        With `join`, the function registered by `@handler.join` runs instead; if there is only one, it is the default.
        With trigger_rule="all_success" or "none_failed", a child that failed or was cancelled fails this job
        (on_child_failure= "cancel": cancels it) instead of running it again.
        """
        channel = cast(AsyncChannel, self._channel)
        awaits = _awaits(trigger_rule, on_child_failure)
        joining = channel.join_of(join_name(join))
        ended = await channel.ended(awaits)
        if ended is None or joining not in (None, channel.job.join):  # a join runs even if no child is open any more
            raise WaitForChildren(awaits.rule.value, awaits.on_failure, joining)
        first = await channel.children(None, ended.named)
        page = partial(channel.children, named=ended.named)
        return Children(first.items, ended.total if first.next else 0, channel.large_result, page)

    async def upstream(self) -> dict[str, Job]:
        """Return the jobs that this one depends on, by stage, or by type where there is no stage: `(await
        ctx.upstream())["PCA"].job_id`. If two have the same name, the job fails for good: submit each with its own
        stage."""
        channel = cast(AsyncChannel, self._channel)
        return by_name(await channel.upstream(), channel.large_result)


class BlockingDurableSteps:
    """The same for a plain `def` handler."""

    __slots__ = ()

    _channel: Any

    @property
    def job_id(self) -> str:
        raise NotImplementedError

    def step(self, name: str, fn: Callable[A, T], /, *args: A.args, **kwargs: A.kwargs) -> T:
        """Call a function and record what it returns; see Context.step."""
        channel = cast(BlockingChannel, self._channel)
        recorded = channel.step(_step_name(name))
        if recorded is not None:
            return cast(T, _decoded(name, fn, recorded))
        answer = _answer(name, fn(*args, **kwargs))
        if not channel.record_step(name, answer):
            raise ClaimLost(f"step {name!r}: this run no longer holds job {self.job_id}")
        return cast(T, _decoded(name, fn, answer))

    once = step

    def sleep(self, name: str, span: float | timedelta) -> None:
        """End this attempt, and run the handler again from the top after this time; see Context.sleep."""
        channel = cast(BlockingChannel, self._channel)
        if (left := channel.sleep(_step_name(name), _span(span))) is not None:
            raise SleepUntil(*left)

    @overload
    def wait_for_event(
        self,
        name: str,
        *,
        type: type[T],
        key: str | None = None,
        timeout: float | timedelta | None = None,
    ) -> T: ...

    @overload
    def wait_for_event(self, name: str, *, key: str | None = None, timeout: float | timedelta | None = None) -> Any: ...

    def wait_for_event(
        self,
        name: str,
        *,
        type: Any = Any,
        key: str | None = None,
        timeout: float | timedelta | None = None,
    ) -> Any:
        """Return the payload of the next event of this name, or end this attempt until one comes; see
        Context.wait_for_event."""
        channel = cast(BlockingChannel, self._channel)
        return _event(
            name, type, channel.wait_for_event(*_event_options(name, key, timeout), typed_json.schema_of(type))
        )

    def stream(self, value: Any) -> None:
        """Append a value to the output of this job, which others read while it runs; see Context.stream."""
        cast(BlockingChannel, self._channel).stream(stream_entry(value))


class BlockingContext(_ContextFields[State], BlockingDurableSteps):
    """The context of a plain `def` handler, in a thread or a process."""

    __slots__ = ()

    def results(self, table: type[R]) -> BlockingJobResults[R]:
        """Write rows of this job, and read rows of other jobs; see Context.results."""
        return BlockingJobResults(table, cast(BlockingChannel, self._channel))

    def artifact(self, name: str, data: Source) -> str:
        """Store a file with the job and return its URI. Accepts bytes, a string, a Path, an open file, or an iterable
        of bytes."""
        return cast(BlockingChannel, self._channel).artifact(check_name(name), data)

    def artifact_ref(self, name: str) -> ArtifactRef:
        """Return a reference to a file that this job has stored; see Context.artifact_ref."""
        return ArtifactRef(**cast(BlockingChannel, self._channel).artifact_ref(check_name(name)))

    def read_artifact(self, ref: ArtifactRef) -> bytes:
        """Read a file of another job by reference; see Context.read_artifact."""
        return cast(BlockingChannel, self._channel).read_artifact(ref.model_dump())

    @overload
    def submit(
        self,
        job_type: HandlerRef[P, Result],
        payload: P,
        *,
        key: str | None = None,
        at_once: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Child[Result]: ...

    @overload
    def submit(
        self,
        job_type: HandlerRef[None, Result],
        payload: None = None,
        *,
        key: str | None = None,
        at_once: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Child[Result]: ...

    @overload
    def submit(
        self,
        job_type: str,
        payload: Any = None,
        *,
        key: str | None = None,
        at_once: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Child: ...

    def submit(
        self,
        job_type: Any,
        payload: Any = None,
        *,
        key: str | None = None,
        at_once: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> Child[Any]:
        """Submit a child of this job; see Context.submit."""
        channel = cast(BlockingChannel, self._channel)
        target = target_of(job_type)
        submitted = channel.submit(target, payload, key, at_once, options)
        return Child(submitted, None if isinstance(target, str) else target)

    @property
    def children(self) -> BlockingChildren:
        """The children that existed when this run began: up to 1,000 of them; `.all()` reads all."""
        channel = cast(BlockingChannel, self._channel)
        return BlockingChildren(channel.loaded_children(), channel.job.children, channel.large_result, channel.children)

    def wait_for_children(
        self,
        *,
        trigger_rule: str = "all_done",
        on_child_failure: str = "fail",
        join: str | Callable[..., Any] | None = None,
    ) -> BlockingChildren:
        """Suspend this job until every child has ended; see Context.wait_for_children."""
        channel = cast(BlockingChannel, self._channel)
        awaits = _awaits(trigger_rule, on_child_failure)
        joining = channel.join_of(join_name(join))
        ended = channel.ended(awaits)
        if ended is None or joining not in (None, channel.job.join):  # a join runs even if no child is open any more
            raise WaitForChildren(awaits.rule.value, awaits.on_failure, joining)
        first = channel.children(None, ended.named)
        page = partial(channel.children, named=ended.named)
        return BlockingChildren(first.items, ended.total if first.next else 0, channel.large_result, page)

    def upstream(self) -> dict[str, Job]:
        """Return the jobs that this one depends on, by stage or type; see Context.upstream."""
        channel = cast(BlockingChannel, self._channel)
        return by_name(channel.upstream(), channel.large_result)


def _awaits(trigger_rule: str, on_child_failure: str) -> Awaits:
    rules = [each.value for each in TriggerRule if each not in (TriggerRule.ONE_SUCCESS, TriggerRule.ONE_FAILED)]
    if trigger_rule not in rules:
        raise InvalidOption(
            f"trigger_rule={trigger_rule!r}: a parent waits for all its children: use all_done, all_success or"
            " none_failed"
        )
    if on_child_failure not in ("fail", "cancel"):
        raise InvalidOption(f"on_child_failure={on_child_failure!r}: use fail or cancel")
    return Awaits(TriggerRule(trigger_rule), on_child_failure)


def _step_name(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX:
        raise ValueError(f"step name {name!r:.80}: use a string of 1 to {NAME_LENGTH_MAX} characters")
    return name


def _decoded(name: str, fn: Callable[..., Any], answer: str) -> Any:
    try:
        return typed_json.decoded(typed_json.returned(fn), answer)
    except pydantic.ValidationError as error:
        raise InvalidResult(
            f"the answer of step {name!r} is not what its function declares to return:"
            f" {explain_validation(error, 'answer')}"
        ) from None


def _span(span: float | timedelta) -> int:
    found = micros(span)
    if not 0 <= found <= DELAY_SECONDS_MAX * MICROS:
        raise InvalidOption(f"{span!r}: use seconds or a timedelta, from 0 to ten years")
    return found


def _event_options(name: str, key: str | None, timeout: float | timedelta | None) -> tuple[str, str | None, int | None]:
    check_text("key", key, KEY_LENGTH_MAX)
    return _step_name(name), key, None if timeout is None else _span(timeout)


def _event(name: str, kind: Any, waited: Waited) -> Any:
    """Return the payload of an event that came, or end the attempt."""
    ending = waited.ending
    if ending is None and waited.wait is not None:
        raise WaitForEvent(waited.wait, waited.seen)
    if ending is None or ending.event_id is None:
        raise EventTimeout(f"event {name!r} did not come in time")
    try:
        return typed_json.decoded(kind, ending.payload)
    except pydantic.ValidationError as error:
        raise InvalidEvent(
            f"event {name!r} ({ending.event_id}) does not fit the type that the wait declares:"
            f" {explain_validation(error, 'payload')}"
        ) from None


def _answer(name: str, value: Any) -> str:
    try:
        return codec.to_json(value, f"answer of step {name!r}")
    except Exception as error:
        raise InvalidResult(str(error)) from None


def stream_entry(value: Any) -> str:
    """Return a streamed value as JSON text."""
    try:
        return codec.to_json(value, "value of ctx.stream")
    except Exception as error:
        raise InvalidResult(str(error)) from None


def _record(job: ClaimedJob) -> JobRecord:
    return JobRecord(**shared(job, JobRecord), status=Status.PROCESSING, updated_at=job.started_at)


I = TypeVar("I", bound="ItemContext[Any] | BlockingItemContext[Any]")  # noqa: E741
_NO_WAIT = "a batch job cannot wait: use @app.job for one that does"


class ItemContext(Context[State]):
    """The context of one job of a batch: what it records is stored with that job, and commits with its own
    completion."""

    __slots__ = ("_number",)

    def __init__(self, channel: Channel, number: int) -> None:
        super().__init__(channel)
        self._number = number

    @property
    def log(self) -> logging.Logger:
        return _item_logger(self._number)

    async def wait_for_children(self, **_: Any) -> NoReturn:
        raise InvalidOption(_NO_WAIT)

    async def sleep(self, name: str, span: float | timedelta) -> NoReturn:
        raise InvalidOption(_NO_WAIT)

    async def wait_for_event(self, name: str, **_: Any) -> NoReturn:
        raise InvalidOption(_NO_WAIT)


class BlockingItemContext(BlockingContext[State]):
    """The same without await."""

    __slots__ = ("_number",)

    def __init__(self, channel: Channel, number: int) -> None:
        super().__init__(channel)
        self._number = number

    @property
    def log(self) -> logging.Logger:
        return _item_logger(self._number)

    def wait_for_children(self, **_: Any) -> NoReturn:
        raise InvalidOption(_NO_WAIT)

    def sleep(self, name: str, span: float | timedelta) -> NoReturn:
        raise InvalidOption(_NO_WAIT)

    def wait_for_event(self, name: str, **_: Any) -> NoReturn:
        raise InvalidOption(_NO_WAIT)


def _item_logger(number: int) -> logging.Logger:
    """A logger whose lines go to one job of the batch; lines of other loggers go to all of them."""
    return logging.LoggerAdapter(logging.getLogger(JOB_LOGGER), {ITEM: number})  # type: ignore[return-value]


class _Batch(Generic[I, State]):
    __slots__ = ("_cancelled", "items")

    def __init__(self, items: Sequence[I], cancelled: Callable[[], bool]) -> None:
        self.items: tuple[I, ...] = tuple(items)
        self._cancelled = cancelled

    def item(self, number: int) -> I:
        """The job whose payload is at this place of the list."""
        return self.items[number]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[I]:
        return iter(self.items)

    @property
    def state(self) -> State:
        """What the function registered with `@app.lifespan` has yielded in this process."""
        return cast(State, self.items[0].state)

    @property
    def log(self) -> logging.Logger:
        """Its lines are kept on every job of the batch."""
        return logging.getLogger(JOB_LOGGER)

    @property
    def cancelled(self) -> bool:
        """True when the whole call should end: it timed out, the worker stops, or none of its jobs is left."""
        return self._cancelled()

    def progress(self, fraction: float, stage: str | None = None) -> Done:
        """Say how far the call is: kept on every job of it."""
        for item in self.items:
            item.progress(fraction, stage)
        return DONE

    def __getattr__(self, name: str) -> NoReturn:
        if hasattr(Context, name):
            raise InvalidOption(f"of which job? write ctx.item(i).{name}")
        raise AttributeError(f"a batch's context has no {name}")


class BatchContext(_Batch[ItemContext[State], State]):
    """The context of an `async def` batch handler."""

    __slots__ = ()


class BlockingBatchContext(_Batch[BlockingItemContext[State], State]):
    """The context of a plain `def` batch handler, in a thread or a process."""

    __slots__ = ()


AnyContext = Context[State] | BlockingContext[State] | BatchContext[State] | BlockingBatchContext[State]


def batch_context(is_async: bool, channels: Sequence[Any], cancelled: Callable[[], bool]) -> Any:
    if is_async:
        return BatchContext([ItemContext(each, n) for n, each in enumerate(channels)], cancelled)
    return BlockingBatchContext([BlockingItemContext(each, n) for n, each in enumerate(channels)], cancelled)

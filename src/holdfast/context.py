"""The context a handler gets. One interface, three ways to reach the worker: directly, from a thread, over a pipe.

`Context` is for `async def`; `BlockingContext`, the same names without await, for `def`. Both speak to a `Channel`,
which the worker provides.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from typing import Any, Protocol, TypeVar, cast

from holdfast import codec, effects
from holdfast.errors import ClaimLost, EffectFailed, InvalidResult
from holdfast.files import check_name
from holdfast.job import Job
from holdfast.lifecycle import Effect, Status
from holdfast.limits import NAME_LENGTH_MAX
from holdfast.store.types import ClaimedJob, JobRecord

T = TypeVar("T")
JOB_LOGGER = "holdfast.job"


class Channel(Protocol):
    """How a context reaches its worker. The first three never block and never fail."""

    job: ClaimedJob

    def progress(self, fraction: float, stage: str | None) -> None: ...

    def metric(self, name: str, value: float) -> None: ...

    def cancelled(self) -> bool: ...

    def effects(self, statements: list[Effect]) -> None: ...


class AsyncChannel(Channel, Protocol):
    async def step(self, name: str) -> str | None: ...

    async def record_step(self, name: str, answer: str) -> bool: ...

    async def artifact(self, name: str, content: bytes) -> str: ...


class BlockingChannel(Channel, Protocol):
    def step(self, name: str) -> str | None: ...

    def record_step(self, name: str, answer: str) -> bool: ...

    def artifact(self, name: str, content: bytes) -> str: ...


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


class _Done:
    """Done already; may be awaited or not."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE = _Done()


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

    def progress(self, fraction: float, stage: str | None = None) -> _Done:
        """Say how far the job is (0 to 1). Live at once in this process, durable within about a second."""
        self._channel.progress(fraction, stage)
        return _DONE

    def transaction(self) -> Transaction:
        """`async with ctx.transaction() as tx: tx.execute("INSERT …", […])`: SQL that commits with the job."""
        return Transaction(self._channel)

    def metric(self, name: str, value: float) -> _Done:
        """Keep a number with the job: `ctx.metric("tokens", 1234)`."""
        self._channel.metric(name, float(value))
        return _DONE


class Context(_ContextFields):
    """For `async def` handlers."""

    __slots__ = ()

    async def once(self, name: str, fn: Callable[[], Awaitable[T] | T]) -> T:
        """Run a step and keep its answer: a later attempt gets the answer and does not run the step again.

        The step itself still runs at least once: a crash between its effect and the record repeats it.
        """
        channel = cast(AsyncChannel, self._channel)
        recorded = await channel.step(_step_name(name))
        if recorded is not None:
            return cast(T, codec.decode(recorded))
        value = fn()
        if inspect.isawaitable(value):
            value = await value
        answer = _answer(name, value)
        if not await channel.record_step(name, answer):
            raise ClaimLost(f"step {name!r}: this run no longer holds job {self.job_id}")
        return cast(T, codec.decode(answer))

    async def artifact(self, name: str, data: bytes | str) -> str:
        """Keep a file with the job; its URI. A second attempt writes it anew."""
        content = data.encode() if isinstance(data, str) else bytes(data)
        return await cast(AsyncChannel, self._channel).artifact(check_name(name), content)


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

    def artifact(self, name: str, data: bytes | str) -> str:
        """Keep a file with the job; its URI. A second attempt writes it anew."""
        content = data.encode() if isinstance(data, str) else bytes(data)
        return cast(BlockingChannel, self._channel).artifact(check_name(name), content)


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
    )

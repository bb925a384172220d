"""Handlers and jobs of the blocking API: the names of the async ones, without `await`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Concatenate, Generic, Protocol, TypeVar, Unpack, cast, overload

from backstay import local_run
from backstay.context import BatchContext, BlockingBatchContext, BlockingContext, Context
from backstay.handlers import Handler, JobHandler, P, R
from backstay.job import ChangeOptions, EditOptions, Job, JobView, R_co, RetryOptions
from backstay.job import JobHandle as AsyncJobHandle
from backstay.ops.audit import By
from backstay.ops.events import SentEvent, StepEntry
from backstay.ops.explanation import Explanation
from backstay.ops.output import OutputEntry
from backstay.options import SubmitOptions
from backstay.pipeline import Pipeline as AsyncPipeline
from backstay.pipeline import PipelineResult
from backstay.registrars import AsyncHandle, AsyncWithContext, BlockingHandle, BlockingWithContext, V, W
from backstay.registration import FunctionHandler as AsyncFunctionHandler
from backstay.registration import Q

T = TypeVar("T")


class App(Protocol):
    """The methods of a blocking app that its handlers and jobs use."""

    def submit(self, job_type: Any, payload: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle[Any]: ...

    def submit_many(self, jobs: Iterable[Any], *, connection: Any = None) -> list[JobHandle[Any]]: ...

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T: ...


class JobHandle(JobView, Generic[R_co]):
    """What submit returns: the job as it was stored, with methods that wait for it, read it and change it."""

    __slots__ = ("_app", "_inner")

    def __init__(self, app: App, inner: AsyncJobHandle[R_co]) -> None:
        self._app = app
        self._inner = inner
        self._record = lambda: inner.row
        self.deduplicated = inner.deduplicated

    @property
    def job_id(self) -> str:
        """Its id, which finds it again in any process: `app.get(job_id)`."""
        return self._inner.job_id

    def result(self, timeout: float | timedelta | None = None) -> R_co:
        """Wait until the job has ended, and return its result as the type that its handler declares. Raises JobFailed,
        JobCancelled or ResultTimeout if there is no result."""
        return self._app._call(self._inner.result(timeout))

    def record(self) -> Job:
        """Read its record as it is now."""
        return self._app._call(self._inner.record())

    def wait(self, timeout: float | timedelta | None = None) -> Job:
        """Wait until the job has ended, however it ended, and return its record. Raises ResultTimeout."""
        return self._app._call(self._inner.wait(timeout))

    def stream(self, *, after: str | None = None) -> Iterator[OutputEntry]:
        """Yield what its handler has streamed and still streams, until it has ended."""
        return each_of(self._app, self._inner.stream(after=after))

    def watch(self) -> Iterator[Job]:
        """Yield its record now, and again whenever its progress, stage or status has changed, up to its end."""
        return each_of(self._app, self._inner.watch())

    def cancel(self, **options: Unpack[ChangeOptions]) -> Job:
        """Cancel it in any active state; a running handler is stopped. See Backstay.cancel."""
        return self._app._call(self._inner.cancel(**options))

    def retry(self, **options: Unpack[RetryOptions]) -> Job:
        """Run it again after its end, with its attempts reset. See Backstay.retry."""
        return self._app._call(self._inner.retry(**options))

    def send_event(self, name: str, payload: Any = None, *, event_id: str | None = None, by: By = None) -> SentEvent:
        """Send it an event, for its `ctx.wait_for_event(name)`. See Backstay.send_event."""
        return self._app._call(self._inner.send_event(name, payload, event_id=event_id, by=by))

    def steps(self) -> list[StepEntry]:
        """What its handler has recorded: steps, sleeps, and waits for events. See Backstay.steps."""
        return self._app._call(self._inner.steps())

    def update(self, payload: Any, **options: Unpack[EditOptions]) -> Job:
        """Give it another payload while it waits. See Backstay.update."""
        return self._app._call(self._inner.update(payload, **options))

    def remove(self, **options: Unpack[EditOptions]) -> None:
        """Erase it for good, with its files, rows and history. See Backstay.remove."""
        self._app._call(self._inner.remove(**options))

    def explain(self) -> Explanation:
        """Why it is not running, or how it ended; `str()` of it is the sentence. See Backstay.explain."""
        return self._app._call(self._inner.explain())


def each_of(app: App, values: AsyncGenerator[T, None]) -> Iterator[T]:
    """Yield the values of an asynchronous generator, which runs on the event loop of the app."""
    end: Any = object()
    try:
        while (value := app._call(_next(values, end))) is not end:
            yield value
    finally:
        app._call(_closed(values))


async def _next(values: AsyncGenerator[T, None], end: T) -> T:
    return await anext(values, end)


async def _closed(values: AsyncGenerator[Any, None]) -> None:
    await values.aclose()


class BoundHandler(Generic[P, R]):
    """A handler registered with an app: `daily_summary.submit(payload)`. Calling it calls the function."""

    def __init__(self, app: App, handler: Handler[P, R]) -> None:
        self.app = app
        self._handler = handler
        self.__doc__ = handler.__doc__

    @property
    def handler(self) -> Handler[P, R]:
        """The handler itself, which both APIs share."""
        return self._handler

    @property
    def name(self) -> str:
        """The job type."""
        return self._handler.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, here and now."""
        return self._handler(*args, **kwargs)

    def submit(self, payload: P, **options: Unpack[SubmitOptions]) -> JobHandle[R]:
        """Store a job of this type; see Backstay.submit."""
        return self.app.submit(self._handler, payload, **options)

    def submit_many(self, payloads: Iterable[P], **options: Unpack[SubmitOptions]) -> list[JobHandle[R]]:
        """Store a job for each payload in one commit, all or none; the options apply to each of them."""
        connection = options.pop("connection", None)
        return self.app.submit_many([(self._handler, each, options) for each in payloads], connection=connection)

    def call(self, payload: P) -> R:
        """Run the function here, without a queue, and return what it returns: for tests."""
        return cast(R, local_run.call_blocking(self._handler, payload))

    def join(self, target: Callable[..., Any] | str) -> Any:
        """Register a function that runs when the children have ended: `@analysis.join`; see Handler.join."""
        return self._handler.join(target)


class FunctionHandler(BoundHandler[dict[str, Any], R], Generic[Q, R]):
    """A function of several parameters, registered with an app: `send.submit(to="a", subject="b")`."""

    def __init__(self, app: App, handler: AsyncFunctionHandler[Q, R]) -> None:
        super().__init__(app, handler)
        self._function = handler

    def payload(self, *args: Q.args, **kwargs: Q.kwargs) -> dict[str, Any]:
        """Return the payload of a call: for submit_many, children and schedules, which take one."""
        return self._function.payload(*args, **kwargs)

    def submit(self, *args: Q.args, **kwargs: Q.kwargs) -> JobHandle[R]:  # type: ignore[override]
        """Store a job that calls the function with these arguments. Options of the job go before:
        `send.options(priority="high").submit(…)`."""
        return self.app.submit(self._function, self._function.payload(*args, **kwargs))

    def options(self, **options: Unpack[SubmitOptions]) -> Submit[Q, R]:
        """Return what submits with these options: `send.options(priority="high", delay=60).submit(to="a")`."""
        return Submit(self, options)

    def call(self, *args: Q.args, **kwargs: Q.kwargs) -> R:  # type: ignore[override]
        """Run the function here, without a queue, and return what it returns: for tests."""
        return cast(R, local_run.call_blocking(self._function, self._function.payload(*args, **kwargs)))


class Submit(Generic[Q, R]):
    """A function with the options of its next jobs."""

    def __init__(self, handler: FunctionHandler[Q, R], options: SubmitOptions) -> None:
        self._handler, self._options = handler, options

    def submit(self, *args: Q.args, **kwargs: Q.kwargs) -> JobHandle[R]:
        """Store a job that calls the function with these arguments."""
        payload = self._handler.payload(*args, **kwargs)
        return self._handler.app.submit(self._handler.handler, payload, **self._options)


def bound(app: App, handler: Handler[Any, Any]) -> BoundHandler[Any, Any]:
    """Return a handler for blocking code."""
    return FunctionHandler(app, handler) if isinstance(handler, AsyncFunctionHandler) else BoundHandler(app, handler)


class Pipeline:
    """A declared pipeline: `full.submit({"stages": […]})`."""

    def __init__(self, app: App, inner: AsyncPipeline) -> None:
        self._app = app
        self.inner = inner

    @property
    def handler(self) -> Handler[Any, PipelineResult]:
        """The handler of its root."""
        return self.inner.handler

    def submit(self, payload: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle[PipelineResult]:
        """Start the pipeline; see backstay.Pipeline.submit."""
        return cast("JobHandle[PipelineResult]", self._app._call(self._start(payload, options)))

    async def _start(self, payload: Any, options: SubmitOptions) -> Any:
        return JobHandle(self._app, await self.inner.submit(payload, **options))


class Register(Protocol):
    """What `app.job(name)` returns: registers a function of (payload) or (payload, ctx), a function of several
    parameters, or a class with `handle`.

    A checker cannot take a keyword-only context out of a signature: of such a function it checks the result alone.
    Where the context comes first, or there is none, it checks the arguments too.
    """

    @overload
    def __call__(self, target: type[AsyncHandle[V, W]], /) -> BoundHandler[V, W]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: type[BlockingHandle[V, W]], /) -> BoundHandler[V, W]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: type[JobHandler[V, W]], /) -> BoundHandler[V, W]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[[V, Context[Any]], Awaitable[W]], /) -> BoundHandler[V, W]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[[V, BlockingContext[Any]], W], /) -> BoundHandler[V, W]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: AsyncWithContext[W], /) -> FunctionHandler[..., W]: ...
    @overload
    def __call__(self, target: BlockingWithContext[W], /) -> FunctionHandler[..., W]: ...
    @overload
    def __call__(self, target: Callable[Concatenate[Context[Any], Q], Awaitable[W]], /) -> FunctionHandler[Q, W]: ...
    @overload
    def __call__(self, target: Callable[Concatenate[BlockingContext[Any], Q], W], /) -> FunctionHandler[Q, W]: ...
    @overload
    def __call__(self, target: Callable[[V], Awaitable[W]], /) -> BoundHandler[V, W]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: Callable[[V], W], /) -> BoundHandler[V, W]: ...
    @overload
    def __call__(self, target: Callable[Q, Awaitable[W]], /) -> FunctionHandler[Q, W]: ...
    @overload
    def __call__(self, target: Callable[Q, W], /) -> FunctionHandler[Q, W]: ...


class RegisterBatch(Protocol):
    """What `app.batch_job(name)` returns: registers a function of a list of payloads."""

    @overload
    def __call__(
        self, target: Callable[[list[V], BatchContext[Any]], Awaitable[Sequence[W | Exception]]], /
    ) -> BoundHandler[V, W]: ...
    @overload
    def __call__(
        self, target: Callable[[list[V], BlockingBatchContext[Any]], Sequence[W | Exception]], /
    ) -> BoundHandler[V, W]: ...
    @overload
    def __call__(self, target: Callable[[list[V]], Awaitable[Sequence[W | Exception]]], /) -> BoundHandler[V, W]: ...
    @overload
    def __call__(self, target: Callable[[list[V]], Sequence[W | Exception]], /) -> BoundHandler[V, W]: ...
    @overload
    def __call__(self, target: type[AsyncHandle[list[V], Sequence[W | Exception]]], /) -> BoundHandler[V, W]: ...
    @overload
    def __call__(self, target: type[BlockingHandle[list[V], Sequence[W | Exception]]], /) -> BoundHandler[V, W]: ...

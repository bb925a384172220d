"""Handlers as an app registers them: what `@app.job` accepts, and what it returns, typed by the function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, Unpack, cast

from backstay import local_run, parameters
from backstay.core.checks import check_job_type
from backstay.handlers import BatchHandler, Handler, HandlerOptions, P, R
from backstay.job import JobHandle
from backstay.options import SubmitOptions
from backstay.parameters import Parameters

if TYPE_CHECKING:
    from backstay import sync_handlers

Q = ParamSpec("Q")  # the parameters of a function


class App(Protocol):
    """The methods of an app that its handlers use."""

    async def submit(self, job_type: Any, payload: Any = None, **options: Unpack[SubmitOptions]) -> JobHandle[Any]: ...

    async def submit_many(self, jobs: Iterable[Any], *, connection: Any = None) -> list[JobHandle[Any]]: ...

    @property
    def sync(self) -> sync_handlers.App: ...


class BoundHandler(Handler[P, R]):
    """A handler registered with an app: `await daily_summary.submit(payload)`."""

    app: App

    async def submit(self, payload: P, **options: Unpack[SubmitOptions]) -> JobHandle[R]:
        """Store a job of this type; see Backstay.submit."""
        return await self.app.submit(self, payload, **options)

    async def submit_many(self, payloads: Iterable[P], **options: Unpack[SubmitOptions]) -> list[JobHandle[R]]:
        """Store a job for each payload in one commit, all or none; the options apply to each of them."""
        connection = options.pop("connection", None)
        return await self.app.submit_many([(self, each, options) for each in payloads], connection=connection)

    async def call(self, payload: P) -> R:
        """Run the function here, without a queue, and return what it returns: for tests. The payload is checked as by
        submit; steps of `ctx.once` run, and what needs a queue is refused."""
        return cast(R, await local_run.call(self, payload))

    @property
    def sync(self) -> sync_handlers.BoundHandler[P, R]:
        """The same handler for blocking code: `daily_summary.sync.submit(payload)` in `with app.sync:`."""
        from backstay import sync_handlers  # imports this module

        return sync_handlers.BoundHandler(self.app.sync, self)


class FunctionHandler(BoundHandler[dict[str, Any], R], Generic[Q, R]):
    """A function of several parameters, registered with an app: `await send.submit(to="a", subject="b")`."""

    def __init__(self, name: str, parameters: Parameters, **options: Unpack[HandlerOptions]) -> None:
        super().__init__(name, parameters.function(), **options)
        self.target = parameters.target
        self._parameters = parameters

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, here and now."""
        return self.target(*args, **kwargs)

    def payload(self, *args: Q.args, **kwargs: Q.kwargs) -> dict[str, Any]:
        """Return the payload of a call: for submit_many, children and schedules, which take one."""
        return self._parameters.given(args, kwargs)

    async def submit(self, *args: Q.args, **kwargs: Q.kwargs) -> JobHandle[R]:  # type: ignore[override]
        """Store a job that calls the function with these arguments. Options of the job go before:
        `send.options(priority="high").submit(…)`."""
        return await self.app.submit(self, self._parameters.given(args, kwargs))

    def options(self, **options: Unpack[SubmitOptions]) -> Submit[Q, R]:
        """Return what submits with these options: `send.options(priority="high", delay=60).submit(to="a")`."""
        return Submit(self, options)

    async def call(self, *args: Q.args, **kwargs: Q.kwargs) -> R:  # type: ignore[override]
        """Run the function here, without a queue, and return what it returns: for tests. The arguments are checked as
        by submit, and the context is made."""
        return cast(R, await local_run.call(self, self._parameters.given(args, kwargs)))

    @property
    def sync(self) -> sync_handlers.FunctionHandler[Q, R]:
        """The same handler for blocking code: `send.sync.submit(to="a")` in `with app.sync:`."""
        from backstay import sync_handlers  # imports this module

        return sync_handlers.FunctionHandler(self.app.sync, self)


class Submit(Generic[Q, R]):
    """A function with the options of its next jobs."""

    def __init__(self, handler: FunctionHandler[Q, R], options: SubmitOptions) -> None:
        self._handler, self._options = handler, options

    async def submit(self, *args: Q.args, **kwargs: Q.kwargs) -> JobHandle[R]:
        """Store a job that calls the function with these arguments."""
        payload = self._handler.payload(*args, **kwargs)
        return await self._handler.app.submit(self._handler, payload, **self._options)


def bound(name: str, target: Any, options: HandlerOptions) -> BoundHandler[Any, Any]:
    """Return the handler of a function or class: of its parameters, if it is a function of several."""
    if (found := parameters.read(check_job_type(name), target)) is not None:
        return FunctionHandler(name, found, **options)
    return BoundHandler(name, target, **options)


class BoundBatchHandler(BatchHandler[P, R], BoundHandler[P, R]):
    """A batch handler registered with an app. Submit its jobs one by one, or with submit_many."""

"""Middleware: functions that wrap each run of a handler, in the handler's own task, thread or process.

A middleware sees how the handler ended and may raise, which is then how the run ended. It changes nothing else: what it
returns is ignored, what it gets is a copy of the result, and an exception that it swallows is raised again behind it.
"""

from __future__ import annotations

import copy
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

from backstay import failpoints
from backstay.errors import ConfigurationError, MiddlewareFailed

CallNext = Callable[[], Awaitable[Any]]
BlockingCallNext = Callable[[], Any]
Middleware = (
    Callable[[Any, CallNext], Awaitable[Any]]  # async def audit(ctx, call_next), for `async def` handlers
    | Callable[[Any, BlockingCallNext], Any]  # def audit(ctx, call_next), for `def` handlers
    | Callable[[Any], Iterator[None]]  # def audit(ctx), with one yield, for both; a Generator is one too
)
M = TypeVar("M", bound=Middleware)
Run = Callable[[Any, Any], Any]  # a handler: of its payload and its context
_UNCHANGING = (type(None), bool, int, float, str, bytes)


class Layer:
    """One middleware: which form it has, and what its first parameter says of the contexts that it takes."""

    def __init__(self, target: Any) -> None:
        self.target = target
        self.name = getattr(target, "__qualname__", repr(target))
        named = target
        while isinstance(named, functools.partial):
            named = named.func
        function = named if inspect.isroutine(named) else getattr(type(named), "__call__", None)  # noqa: B004
        try:
            parameters = list(inspect.signature(target).parameters.values())
        except (TypeError, ValueError):
            raise ConfigurationError(f"{target!r:.80} is not a middleware: {_FORMS}") from None
        positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        required = sum(each.default is each.empty for each in parameters if each.kind is not each.VAR_KEYWORD)
        self.is_generator = inspect.isgeneratorfunction(function)
        self.is_async = inspect.iscoroutinefunction(function)
        wanted = 1 if self.is_generator else 2
        if inspect.isasyncgenfunction(function) or required > wanted or len(positional) < wanted:
            raise ConfigurationError(f"the middleware {self.name} has another form than one that runs: {_FORMS}")
        try:
            hints = typing.get_type_hints(function)
        except NameError as error:
            raise ConfigurationError(f"an annotation of the middleware {self.name} cannot be read: {error}") from None
        self.annotation = hints.get(positional[0].name, Any)


_FORMS = (
    "write async def f(ctx, call_next) for handlers that are `async def`, def f(ctx, call_next) for those that are"
    " `def`, or def f(ctx) with one yield for both"
)


def checked(
    targets: Sequence[Any], *, job_type: str, is_async: bool, fits: Callable[[Any], str | None]
) -> tuple[Layer, ...]:
    """Return middleware as layers, outermost first. Raises ConfigurationError for one that a handler cannot have.
    `fits`: what is wrong with an annotation of the context."""
    layers = tuple(each if isinstance(each, Layer) else Layer(each) for each in targets)
    for layer in layers:
        if not layer.is_generator and layer.is_async is not is_async:
            kind, own = ("an `async def`", "a `def`") if is_async else ("a `def`", "an `async def`")
            raise ConfigurationError(
                f"the middleware {layer.name} is {own}, and the handler of {job_type!r}, which it wraps, is {kind}:"
                f" write the middleware as def f(ctx) with one yield, which fits both, or give it"
                " to the handlers that it fits, @app.job(…, middleware=[…])"
            )
        if (wrong := fits(layer.annotation)) is not None:
            raise ConfigurationError(
                f"the middleware {layer.name} cannot wrap the handler of {job_type!r}: {wrong}; annotate its ctx with"
                " every context that it is to have (Context | BlockingContext, or AnyContext), or with none"
            )
    return layers


def wrapped(entry: tuple[Callable[..., Any], bool], layers: Sequence[Layer], *, is_async: bool) -> Run:
    """Return the function of (payload, ctx) that runs a handler inside its middleware. `entry`: its function, and
    whether that takes a context."""
    function, takes_context = entry

    async def run(payload: Any, ctx: Any) -> Any:
        async def call() -> Any:
            return await (function(payload, ctx) if takes_context else function(payload))

        inner: CallNext = call
        for layer in reversed(layers):
            inner = _Async(layer, ctx, inner).run
        return await inner()

    def run_blocking(payload: Any, ctx: Any) -> Any:
        def call() -> Any:
            return function(payload, ctx) if takes_context else function(payload)

        inner: BlockingCallNext = call
        for layer in reversed(layers):
            inner = _Blocking(layer, ctx, inner).run
        return inner()

    return run if is_async else run_blocking


class _Around:
    """One layer around one run, and how what is inside ended."""

    def __init__(self, layer: Layer, ctx: Any, inner: Callable[[], Any]) -> None:
        self._layer = layer
        self._ctx = ctx
        self._inner = inner
        self._is_called = False
        self._is_over = False
        self._value: Any = None
        self._error: BaseException | None = None

    def _begin(self) -> None:
        if self._is_called:
            raise MiddlewareFailed(f"the middleware {self._layer.name} called call_next twice: a run happens once")
        self._is_called = True

    def _returned(self, value: Any) -> Any:
        self._value, self._is_over = value, True
        return value if type(value) in _UNCHANGING else _copied(value)

    def _raised(self, error: BaseException) -> None:
        self._error, self._is_over = error, True

    def _end(self) -> Any:
        """Return what the handler returned, or raise what it raised: whatever the middleware made of it."""
        if not self._is_over:
            did = "did not wait for call_next()" if self._is_called else "returned without a call of call_next()"
            raise MiddlewareFailed(
                f"the middleware {self._layer.name} {did}, so the handler did not run: call it (`await call_next()` in"
                " an `async def`), or raise why the job is not to run: Retry, Snooze, Cancel or Discard"
            )
        if self._error is not None:
            raise self._error
        return self._value

    # A generator, which waits for nothing itself, is the same around every kind of handler

    def _enter(self) -> Generator[None, Any, Any]:
        made: Generator[None, Any, Any] = self._layer.target(self._ctx)
        try:
            next(made)
        except StopIteration:
            raise MiddlewareFailed(
                f"the middleware {self._layer.name} ended before its yield, which is where the handler runs; to refuse"
                " a job, raise Retry, Snooze, Cancel or Discard"
            ) from None
        return made

    def _leave(self, made: Generator[None, Any, Any], value: Any) -> None:
        try:
            made.send(value)
        except StopIteration:
            return
        self._yields_again(made)

    def _leave_with(self, made: Generator[None, Any, Any], error: BaseException) -> None:
        try:
            made.throw(error)
        except StopIteration:
            return
        except RuntimeError as raised:
            if raised.__cause__ is error:  # a StopIteration of the handler, which Python converts in a generator
                return
            raise
        self._yields_again(made)

    def _yields_again(self, made: Generator[None, Any, Any]) -> None:
        made.close()
        raise MiddlewareFailed(f"the middleware {self._layer.name} has more than one yield: a run happens once")


class _Async(_Around):
    async def run(self) -> Any:
        if failpoints.armed:
            failpoints.hit("middleware.before")
        if self._layer.is_generator:
            await self._around_generator()
        else:
            await self._layer.target(self._ctx, self._call_next)
        if failpoints.armed:
            failpoints.hit("middleware.after")
        return self._end()

    async def _call_next(self) -> Any:
        self._begin()
        try:
            value = await self._inner()
        except BaseException as error:
            self._raised(error)
            raise
        return self._returned(value)

    async def _around_generator(self) -> None:
        made = self._enter()
        try:
            value = await self._call_next()
        except BaseException as error:
            self._leave_with(made, error)
        else:
            self._leave(made, value)


class _Blocking(_Around):
    def run(self) -> Any:
        if failpoints.armed:
            failpoints.hit("middleware.before")
        if self._layer.is_generator:
            self._around_generator()
        else:
            self._layer.target(self._ctx, self._call_next)
        if failpoints.armed:
            failpoints.hit("middleware.after")
        return self._end()

    def _call_next(self) -> Any:
        self._begin()
        try:
            value = self._inner()
        except BaseException as error:
            self._raised(error)
            raise
        return self._returned(value)

    def _around_generator(self) -> None:
        made = self._enter()
        try:
            value = self._call_next()
        except BaseException as error:
            self._leave_with(made, error)
        else:
            self._leave(made, value)


def _copied(value: Any) -> Any:
    """Return a copy for a middleware to look at: what it does to it is not stored."""
    try:
        return copy.deepcopy(value)
    except Exception:  # of its own code
        return value

"""What `app.job` and `app.batch_job` accept, for type checkers alone: nothing imports this at run time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, Protocol, TypeVar, overload

from backstay.context import BatchContext, BlockingBatchContext, BlockingContext, Context
from backstay.handlers import JobHandler
from backstay.registration import BoundBatchHandler, BoundHandler, FunctionHandler, Q

A = TypeVar("A", contravariant=True)  # of a payload that is only taken
# Of overloads; without defaults, since mypy 2.4 takes the default where it has to choose among overloads.
V = TypeVar("V")
W = TypeVar("W")
B = TypeVar("B", covariant=True)  # of a result that is only given

# Functions whose context is keyword-only, by the number of their other parameters: to mypy, `*args: Any, **kwargs: Any`
# is any signature, with or without a context.


class _Async0(Protocol[B]):
    def __call__(self, *, ctx: Context[Any]) -> Awaitable[B]: ...


class _Async1(Protocol[B]):
    def __call__(self, a: Any, /, *, ctx: Context[Any]) -> Awaitable[B]: ...


class _Async2(Protocol[B]):
    def __call__(self, a: Any, b: Any, /, *, ctx: Context[Any]) -> Awaitable[B]: ...


class _Async3(Protocol[B]):
    def __call__(self, a: Any, b: Any, c: Any, /, *, ctx: Context[Any]) -> Awaitable[B]: ...


class _Async4(Protocol[B]):
    def __call__(self, a: Any, b: Any, c: Any, d: Any, /, *, ctx: Context[Any]) -> Awaitable[B]: ...


class _Async5(Protocol[B]):
    def __call__(self, a: Any, b: Any, c: Any, d: Any, e: Any, /, *, ctx: Context[Any]) -> Awaitable[B]: ...


class _Async6(Protocol[B]):
    def __call__(self, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, /, *, ctx: Context[Any]) -> Awaitable[B]: ...


class _Async7(Protocol[B]):
    def __call__(
        self, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, /, *, ctx: Context[Any]
    ) -> Awaitable[B]: ...


class _Async8(Protocol[B]):
    def __call__(
        self, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, /, *, ctx: Context
    ) -> Awaitable[B]: ...


class _Blocking0(Protocol[B]):
    def __call__(self, *, ctx: BlockingContext[Any]) -> B: ...


class _Blocking1(Protocol[B]):
    def __call__(self, a: Any, /, *, ctx: BlockingContext[Any]) -> B: ...


class _Blocking2(Protocol[B]):
    def __call__(self, a: Any, b: Any, /, *, ctx: BlockingContext[Any]) -> B: ...


class _Blocking3(Protocol[B]):
    def __call__(self, a: Any, b: Any, c: Any, /, *, ctx: BlockingContext[Any]) -> B: ...


class _Blocking4(Protocol[B]):
    def __call__(self, a: Any, b: Any, c: Any, d: Any, /, *, ctx: BlockingContext[Any]) -> B: ...


class _Blocking5(Protocol[B]):
    def __call__(self, a: Any, b: Any, c: Any, d: Any, e: Any, /, *, ctx: BlockingContext[Any]) -> B: ...


class _Blocking6(Protocol[B]):
    def __call__(self, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, /, *, ctx: BlockingContext[Any]) -> B: ...


class _Blocking7(Protocol[B]):
    def __call__(
        self, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, /, *, ctx: BlockingContext[Any]
    ) -> B: ...


class _Blocking8(Protocol[B]):
    def __call__(
        self, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, /, *, ctx: BlockingContext
    ) -> B: ...


AsyncWithContext = (
    _Async0[W] | _Async1[W] | _Async2[W] | _Async3[W] | _Async4[W] | _Async5[W] | _Async6[W] | _Async7[W] | _Async8[W]
)
BlockingWithContext = (
    _Blocking0[W]
    | _Blocking1[W]
    | _Blocking2[W]
    | _Blocking3[W]
    | _Blocking4[W]
    | _Blocking5[W]
    | _Blocking6[W]
    | _Blocking7[W]
    | _Blocking8[W]
)


class AsyncHandle(Protocol[A, B]):
    """A class whose `handle` is an `async def`."""

    async def handle(self, payload: A, ctx: Any, /) -> B: ...


class BlockingHandle(Protocol[A, B]):
    """A class whose `handle` is a plain `def`."""

    def handle(self, payload: A, ctx: Any, /) -> B: ...


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
    ) -> BoundBatchHandler[V, W]: ...
    @overload
    def __call__(
        self, target: Callable[[list[V], BlockingBatchContext[Any]], Sequence[W | Exception]], /
    ) -> BoundBatchHandler[V, W]: ...
    @overload
    def __call__(
        self, target: Callable[[list[V]], Awaitable[Sequence[W | Exception]]], /
    ) -> BoundBatchHandler[V, W]: ...
    @overload
    def __call__(self, target: Callable[[list[V]], Sequence[W | Exception]], /) -> BoundBatchHandler[V, W]: ...
    @overload
    def __call__(self, target: type[AsyncHandle[list[V], Sequence[W | Exception]]], /) -> BoundBatchHandler[V, W]: ...
    @overload
    def __call__(
        self, target: type[BlockingHandle[list[V], Sequence[W | Exception]]], /
    ) -> BoundBatchHandler[V, W]: ...

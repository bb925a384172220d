"""The context of a batch handler: of the call as a whole, and of each of its jobs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NoReturn, TypeVar

from holdfast.context import DONE, ITEM, JOB_LOGGER, BlockingContext, Channel, Context, Done
from holdfast.errors import InvalidOption

I = TypeVar("I", "ItemContext", "BlockingItemContext")  # noqa: E741
_NO_WAIT = "a job of a batch does not wait for its children: use @app.job for one that does"


class ItemContext(Context):
    """One job of a batch: what is said here is kept with it, and commits with its own completion."""

    __slots__ = ("_number",)

    def __init__(self, channel: Channel, number: int) -> None:
        super().__init__(channel)
        self._number = number

    @property
    def log(self) -> logging.Logger:
        return _item_logger(self._number)

    async def wait_for_children(self, **_: Any) -> NoReturn:
        raise InvalidOption(_NO_WAIT)


class BlockingItemContext(BlockingContext):
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


def _item_logger(number: int) -> logging.Logger:
    """Lines of it go to one job of the batch; those of other loggers to all of them."""
    return logging.LoggerAdapter(logging.getLogger(JOB_LOGGER), {ITEM: number})  # type: ignore[return-value]


class _Batch(Generic[I]):
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
            raise InvalidOption(f"which job's? write ctx.item(i).{name}")
        raise AttributeError(f"a batch's context has no {name}")


class BatchContext(_Batch[ItemContext]):
    """For `async def` batch handlers."""

    __slots__ = ()


class BlockingBatchContext(_Batch[BlockingItemContext]):
    """For plain `def` batch handlers, in a thread or a process."""

    __slots__ = ()


def batch_context(is_async: bool, channels: Sequence[Any], cancelled: Callable[[], bool]) -> Any:
    if is_async:
        return BatchContext([ItemContext(each, n) for n, each in enumerate(channels)], cancelled)
    return BlockingBatchContext([BlockingItemContext(each, n) for n, each in enumerate(channels)], cancelled)

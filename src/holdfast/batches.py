"""Batch handlers: one call for many jobs, an answer for each."""

from __future__ import annotations

import collections.abc
import logging
import typing
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Unpack

from holdfast import limits
from holdfast.clock import MICROS, micros
from holdfast.errors import ConfigurationError, InvalidOption
from holdfast.handlers import Handler, HandlerOptions, JobHandler

log = logging.getLogger("holdfast")
_LISTS = (list, collections.abc.Sequence)


class BatchOptions(HandlerOptions, total=False):
    """The keyword options of @app.batch_job: those of @app.job, and how jobs are gathered."""

    max_size: int
    max_wait: float | timedelta
    same_once: bool


class BatchHandler(Handler):
    """A handler of a list of payloads. Its `concurrency` counts calls; each job has its own attempts and outcome."""

    contexts = ("BatchContext", "BlockingBatchContext")
    said_of_many = " of a batch"

    def __init__(
        self,
        name: str,
        target: Callable[..., Any] | type[JobHandler[Any]],
        *,
        max_size: int = limits.BATCH_SIZE,
        max_wait: float | timedelta = limits.BATCH_WAIT_SECONDS,
        same_once: bool = True,
        **options: Unpack[HandlerOptions],
    ) -> None:
        super().__init__(name, target, **options)
        self.max_size = _check_size(max_size)
        self.max_wait_seconds = _check_wait(max_wait)
        self.same_once = bool(same_once)
        if self.max_attempts == 1:
            log.warning(
                "%s: with max_attempts=1 a worker that dies takes every job of its batch to the dead letters; from 2 on"
                " each of them runs again, alone",
                name,
            )

    def join(self, target: Callable[..., Any] | str) -> Any:
        raise ConfigurationError(f"{self.name}: jobs of a batch do not wait for children, so it has no join")

    def _of_one(self, annotation: Any) -> Any:
        if annotation is Any:
            return Any
        if annotation in _LISTS:
            return Any
        if typing.get_origin(annotation) not in _LISTS:
            raise ConfigurationError(f"{self.name}: a batch handler takes a list: write payloads: list[Text]")
        return typing.get_args(annotation)[0]


def _check_size(size: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= limits.BATCH_SIZE_MAX:
        raise InvalidOption(f"max_size={size!r}: use 1 to {limits.BATCH_SIZE_MAX:,}")
    return size


def _check_wait(wait: float | timedelta) -> float:
    try:
        span = micros(wait) / MICROS
    except (TypeError, ValueError, OverflowError):
        span = -1.0
    if not 0 <= span <= limits.BATCH_WAIT_SECONDS_MAX:
        raise InvalidOption(
            f"max_wait={wait!r}: use seconds or a timedelta, from 0 to {limits.BATCH_WAIT_SECONDS_MAX:g} s"
        )
    return span

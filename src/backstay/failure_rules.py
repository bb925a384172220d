"""`retry_on`, `discard_on` and backoff functions: whether and when a failed job is retried. No I/O.

They are decided where the exception is: in the worker's process, or in the child process of an isolated handler, which
compares types by their classes and not by their names. What crosses to the worker is the decision.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec

from backstay.clock import MICROS, micros
from backstay.errors import ConfigurationError, EffectFailed, StoreError
from backstay.limits import DELAY_SECONDS_MAX

log = logging.getLogger("backstay.worker")

Exceptions = type[BaseException] | tuple[type[BaseException], ...]
BackoffFunction = Callable[[int, BaseException], float | timedelta]  # of (attempt, exception): the delay


class Decision(msgspec.Struct, frozen=True):
    """What follows from an exception: the job is discarded, or tried again: after a time, or after its backoff."""

    discards: bool = False
    after_micros: int | None = None


AS_USUAL = Decision()


class FailureRules(msgspec.Struct, frozen=True):
    """The rules of a handler. `retry_on`: all other exceptions are discarded; `discard_on`: these are."""

    retry_on: tuple[type[BaseException], ...] | None = None
    discard_on: tuple[type[BaseException], ...] = ()
    backoff: BackoffFunction | None = None

    def decide(self, error: BaseException, failures: int) -> Decision:
        """Return what follows from an exception of a job that has failed this many times before."""
        if isinstance(error, StoreError | EffectFailed):
            return AS_USUAL  # of the queue, and not of the handler's work
        if isinstance(error, self.discard_on):
            return Decision(discards=True)
        if self.retry_on is not None and not isinstance(error, self.retry_on):
            return Decision(discards=True)
        return AS_USUAL if self.backoff is None else Decision(after_micros=self._delay(failures + 1, error))

    def _delay(self, attempt: int, error: BaseException) -> int | None:
        """Return the delay by the handler's own function; None, for the usual backoff, if that is faulty."""
        assert self.backoff is not None  # noqa: S101 - the caller has looked
        try:
            found = micros(self.backoff(attempt, error))
            if found < 0:
                raise ValueError("it is negative")
        except Exception as wrong:
            log.warning(
                "the backoff function of a handler failed for attempt %d and %s, so that the default is used: %s: %s",
                attempt, type(error).__name__, type(wrong).__name__, wrong,
            )  # fmt: skip
            return None
        return min(found, round(DELAY_SECONDS_MAX * MICROS))


def rules_of(
    name: str, retry_on: Exceptions | None, discard_on: Exceptions | None, backoff: Any
) -> FailureRules | None:
    """Return the rules of a handler; None if it has none."""
    function = backoff if callable(backoff) else None
    if retry_on is None and discard_on is None and function is None:
        return None
    return FailureRules(
        None if retry_on is None else _types(name, "retry_on", retry_on),
        () if discard_on is None else _types(name, "discard_on", discard_on),
        function,
    )


def _types(name: str, option: str, given: Any) -> tuple[type[BaseException], ...]:
    listed = tuple(given) if isinstance(given, tuple | list) else (given,)
    if not listed or not all(isinstance(each, type) and issubclass(each, BaseException) for each in listed):
        raise ConfigurationError(
            f"{name}: {option}={given!r:.80}: use an exception type or a tuple of them, such as"
            " (TimeoutError, ConnectionError)"
        )
    return listed

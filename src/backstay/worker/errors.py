"""Turns exceptions into bounded error entries, and captures log lines of handlers for their job."""

from __future__ import annotations

import contextvars
import logging
import os
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from backstay import codec
from backstay.clock import Instant
from backstay.context import ITEM, JOB_LOGGER
from backstay.core.dependencies import Awaits, TriggerRule
from backstay.core.lifecycle import (
    Cancelled,
    Discarded,
    Outcome,
    Raised,
    RetryAsked,
    Sleeping,
    Snoozed,
    WaitingForChildren,
    WaitingForEvent,
)
from backstay.core.records import ErrorEntry
from backstay.errors import InvalidResult, ResultTooLarge, StoreMoved
from backstay.failure_rules import AS_USUAL, FailureRules
from backstay.job import SleepUntil, WaitForChildren, WaitForEvent, unwrapped
from backstay.limits import RESULT_BYTES_MAX
from backstay.outcomes import Cancel, Discard, Retry, Snooze

_OURS = os.path.dirname(__file__)


class CallBroke(Exception):
    """A call of a batch handler raised in its child, or the child died. `outcome` is that of each of its jobs, by
    attempt and time: the error came over the pipe as text."""

    def __init__(self, message: str, outcome: Callable[[int, Instant], Outcome]) -> None:
        super().__init__(message)
        self.outcome = outcome


def outcome_of(error: BaseException, job: Attempted, now: Instant, rules: FailureRules | None = None) -> Outcome:
    """Return the outcome that an exception of a handler with these rules stands for. Never raises, whatever the
    exception's own code does."""
    attempt = job.attempt
    try:
        return _outcome_of(error, job, now, rules)
    except BaseException:  # of its __class__, or of a group's exceptions
        return Raised(entry(error, attempt, now))


def is_error(value: object) -> bool:
    """Return whether a value is an exception, without running code of its own."""
    return issubclass(type(value), BaseException)


def _outcome_of(error: BaseException, job: Attempted, now: Instant, rules: FailureRules | None) -> Outcome:
    attempt = job.attempt
    match error := unwrapped(error):
        case Retry():
            return RetryAsked(entry(error, attempt, now), error.after_micros)
        case Snooze():
            return Snoozed(error.for_micros, None if error.reason is None else codec.clean(str(error.reason)))
        case Cancel():
            return Cancelled(message(error))
        case Discard() | ResultTooLarge():
            return Discarded(entry(error, attempt, now))
        case WaitForChildren():
            return WaitingForChildren(Awaits(TriggerRule(error.trigger_rule), error.on_failure), error.join)
        case SleepUntil():
            return Sleeping(error.name, error.until)
        case WaitForEvent():
            return WaitingForEvent(error.wait, error.seen)
        case _:
            decided = AS_USUAL if rules is None else rules.decide(error, job.failures)
            found = entry(error, attempt, now)
            if decided.discards:
                return Discarded(found)
            return Raised(found) if decided.after_micros is None else RetryAsked(found, decided.after_micros)


class Attempted(Protocol):
    """A job of which an attempt has ended."""

    @property
    def attempt(self) -> int: ...

    @property
    def failures(self) -> int: ...


def one_each(value: Any, expected: int, job_type: str) -> list[Any] | tuple[Any, ...]:
    """Return the list that a batch handler returned, if it has one answer for each job."""
    if isinstance(value, list | tuple) and len(value) == expected:
        return value
    gave = f"{len(value)}" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
    raise InvalidResult(
        f"{job_type} must return a list of {expected}, a result or an exception for each payload, but returned {gave}"
    )


def entry(error: BaseException, attempt: int, now: Instant) -> ErrorEntry:
    return ErrorEntry(attempt, now, type(error).__name__[:200], message(error), trace(error))


def result_limit(size: int) -> str:
    return f"the result has {size:,} bytes; the limit is {RESULT_BYTES_MAX:,} (RESULT_BYTES_MAX)"


def message(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:
        text = "<its message cannot be read: __str__ raised>"
    return codec.clean(text)


def trace(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(type(error), error, _from_the_handler_on(error.__traceback__)))
    except BaseException:
        text = "<its traceback cannot be read>"
    return codec.clean(text, keep_end=True)


def _from_the_handler_on(trace: TracebackType | None) -> TracebackType | None:
    """Remove the worker's own frames, which say nothing about the error. If nothing else is left, keep them all."""
    found = trace
    while found is not None and os.path.dirname(found.tb_frame.f_code.co_filename) == _OURS:
        found = found.tb_next
    return found or trace


log = logging.getLogger("backstay.worker")
_said: set[str] = set()  # what this process has said; there are few things to say


def say_once(error: StoreMoved) -> None:
    if str(error) not in _said:
        _said.add(str(error))
        log.warning("nothing to do: %s", error)


class TakesLogs(Protocol):
    def say_log(self, created: float, level: str, message: str, item: int | None = None) -> None: ...


current: contextvars.ContextVar[TakesLogs | None] = contextvars.ContextVar("backstay_run", default=None)


STORED = "backstay_stored"  # of a log record: its job has it already


class CaptureHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        run = current.get()
        if run is None or hasattr(record, STORED):
            return
        try:
            run.say_log(record.created, record.levelname, self.format(record), getattr(record, ITEM, None))
        except Exception:
            self.handleError(record)


_handler = CaptureHandler()
_users = 0


def install(handler: logging.Handler = _handler) -> None:
    """Install the handler once for all workers of this process, which are counted."""
    global _users
    if _users == 0:
        logging.getLogger().addHandler(handler)
        logger = logging.getLogger(JOB_LOGGER)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.DEBUG)
    _users += 1


def remove() -> None:
    global _users
    _users -= 1
    if _users == 0:
        logging.getLogger().removeHandler(_handler)

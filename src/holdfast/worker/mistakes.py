"""Exceptions to error entries: bounded, as text, whatever the exception does when it is looked at."""

from __future__ import annotations

import os
import traceback
from types import TracebackType
from typing import Any

from holdfast import codec
from holdfast.clock import Instant
from holdfast.errors import InvalidPayload, InvalidResult
from holdfast.lifecycle import (
    Cancelled,
    Discarded,
    ErrorEntry,
    Outcome,
    Raised,
    RetryAsked,
    Snoozed,
    WaitingForChildren,
)
from holdfast.limits import ERROR_TEXT_MAX
from holdfast.offspring import WaitForChildren, unwrapped
from holdfast.outcomes import Cancel, Discard, Retry, Snooze
from holdfast.trees import Awaits, TriggerRule

_OURS = os.path.dirname(__file__)


def outcome_of(error: BaseException, attempt: int, now: Instant) -> Outcome:
    """What a raised exception asks for."""
    match error := unwrapped(error):
        case Retry():
            return RetryAsked(entry(error, attempt, now), error.after_micros)
        case Snooze():
            return Snoozed(error.for_micros, None if error.reason is None else clean(str(error.reason)))
        case Cancel():
            return Cancelled(message(error))
        case Discard():
            return Discarded(entry(error, attempt, now))
        case WaitForChildren():
            return WaitingForChildren(Awaits(TriggerRule(error.trigger_rule), error.on_failure), error.join)
        case _:
            return Raised(entry(error, attempt, now))


def result_json(value: Any) -> str:
    try:
        return codec.to_json(value, "result")
    except InvalidPayload as error:
        raise InvalidResult(str(error)) from None


def one_each(value: Any, expected: int, job_type: str) -> list[Any] | tuple[Any, ...]:
    """What a batch handler returned, if it is an answer for each of its jobs."""
    if isinstance(value, list | tuple) and len(value) == expected:
        return value
    gave = f"{len(value)}" if isinstance(value, list | tuple) else f"a {type(value).__name__}"
    raise InvalidResult(
        f"{job_type} must return a list of {expected}, an answer or an exception for each payload, and gave {gave}"
    )


def entry(error: BaseException, attempt: int, now: Instant) -> ErrorEntry:
    return ErrorEntry(attempt, now, type(error).__name__[:200], message(error), trace(error))


def message(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:
        text = "<its message cannot be read: __str__ raised>"
    return clean(text)


def trace(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(type(error), error, _from_the_handler_on(error.__traceback__)))
    except BaseException:
        text = "<its traceback cannot be read>"
    return clean(text, keep_end=True)


def _from_the_handler_on(trace: TracebackType | None) -> TracebackType | None:
    """How the worker came to call the handler says nothing about the error; where nothing else is left, all is kept."""
    found = trace
    while found is not None and os.path.dirname(found.tb_frame.f_code.co_filename) == _OURS:
        found = found.tb_next
    return found or trace


def clean(text: str, *, keep_end: bool = False, limit: int = ERROR_TEXT_MAX) -> str:
    """Text that every engine stores: no NUL, no lone surrogates, not too long."""
    text = text[-limit:] if keep_end else text[:limit]
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")

"""Checks of what callers hand in, shared by all who take it: text, names, and the options that a handler and a submit
have in common."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from holdfast import limits
from holdfast.clock import micros
from holdfast.errors import InvalidOption, PayloadTooLarge

PRIORITIES = {"low": 25, "normal": 50, "high": 75, "urgent": 100}
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
UUID = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")
# What stands, or may stand, behind /jobs/ in a route of the HTTP API.
ROUTE_WORDS = frozenset({"batch", "history", "logs", "tree", "explain", "results", "artifacts", "stream", "retry"})
_MARK = re.compile(r"run again from [0-9a-f-]{36}(, version \d+)?(:|$)")


def check_text(name: str, value: Any, longest: int) -> str | None:
    """A text that every engine stores and finds again; None stays None."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= longest or "\0" in value:
        raise InvalidOption(f"{name}={value!r:.80}: use a text of 1 to {longest} characters, without NUL")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidOption(f"{name} has a lone surrogate, which is not UTF-8") from None
    return value


def is_mark(reason: str | None) -> bool:
    """Whether history says of an event that children run again with their parent; see running_again."""
    return reason is not None and _MARK.match(reason) is not None


def check_reason(reason: str | None) -> str | None:
    """Why someone does something, in words that decide nothing."""
    if is_mark(check_text("reason", reason, limits.REASON_LENGTH_MAX)):
        raise InvalidOption(f"reason={reason!r:.80}: this is how a rerun is marked: say it in other words")
    return reason


def check_name(name: str, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOption(f"{name!r:.80} cannot be a {what}: use 1 to 128 of A-Z a-z 0-9 . _ : -")
    return name


def check_job_type(name: str) -> str:
    """A name of a type, as it stands in the path of a route: told apart from an id, and from the words of routes."""
    check_name(name, "job type")
    if name in ROUTE_WORDS:
        raise InvalidOption(f"{name!r} is a word of the HTTP routes: choose another job type")
    if UUID.fullmatch(name):
        raise InvalidOption(f"{name!r} cannot be a job type: it reads as a job id")
    if name in (".", ".."):
        raise InvalidOption(f"{name!r} cannot be a job type: it means another folder in a URL")
    return name


def check_priority(priority: int | str) -> int:
    if isinstance(priority, str):
        if priority not in PRIORITIES:
            raise InvalidOption(f"priority={priority!r}: use 0 to 100, or one of {', '.join(PRIORITIES)}")
        return PRIORITIES[priority]
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 100:
        raise InvalidOption(f"priority={priority!r}: use 0 to 100, or one of {', '.join(PRIORITIES)}")
    return priority


def check_max_attempts(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= limits.MAX_ATTEMPTS_MAX:
        raise InvalidOption(f"max_attempts={count!r}: use 1 to {limits.MAX_ATTEMPTS_MAX}")
    return count


def check_timeout(timeout: float | timedelta) -> int:
    try:
        span = micros(timeout)
    except (TypeError, ValueError, OverflowError):
        span = 0
    if not 0 < span <= limits.TIMEOUT_SECONDS_MAX * 1_000_000:
        raise InvalidOption(f"timeout={timeout!r}: use seconds or a timedelta, above 0 and up to 30 days")
    return span


def check_payload_size(payload: str) -> str:
    # Encoding only where the length alone cannot tell: a character takes one to four bytes.
    if len(payload) * 4 > limits.PAYLOAD_BYTES_MAX:
        size = len(payload.encode())
        if size > limits.PAYLOAD_BYTES_MAX:
            raise PayloadTooLarge(
                f"the payload has {size:,} bytes, over the limit of {limits.PAYLOAD_BYTES_MAX:,}"
                " (PAYLOAD_BYTES_MAX): store the data elsewhere and submit its name"
            )
    return payload

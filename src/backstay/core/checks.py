"""Checks of names, texts and numbers that callers pass in, and formatting of counts, durations and times."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from backstay import limits
from backstay.clock import micros, to_instant
from backstay.errors import InvalidOption, PayloadTooLarge

PRIORITIES = {"low": 25, "normal": 50, "high": 75, "urgent": 100}
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,128}")
UUID = re.compile(r"[0-9a-fA-F]{8}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{4}-?[0-9a-fA-F]{12}")
# What stands, or may stand, behind /jobs/ in a route of the HTTP API.
ROUTE_WORDS = frozenset(
    {"batch", "cancel", "history", "logs", "tree", "explain", "results", "artifacts", "stream", "retry"}
)

_NO_OTHERS: Mapping[str, str] = MappingProxyType({})


def check_text(name: str, value: Any, longest: int) -> str | None:
    """Return a text that every engine can store and find; None stays None."""
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= longest or "\0" in value:
        raise InvalidOption(
            f"{name}={value!r:.80}: use a string of 1 to {longest} characters, without NUL", option=name
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidOption(f"{name} has a lone surrogate, which is not UTF-8", option=name) from None
    return value


def check_reason(reason: str | None) -> str | None:
    """Return the free-text reason of a change."""
    return check_text("reason", reason, limits.REASON_LENGTH_MAX)


def check_name(name: str, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOption(f"{name!r:.80} cannot be a {what}: use 1 to 128 of A-Z a-z 0-9 . _ : -", option=what)
    return name


def check_job_type(name: str) -> str:
    """Return the name of a job type. It is part of route paths, so it must differ from ids and from the words of
    routes."""
    check_name(name, "job type")
    if name in ROUTE_WORDS:
        raise InvalidOption(f"{name!r} is reserved by the HTTP routes: choose another job type")
    if UUID.fullmatch(name):
        raise InvalidOption(f"{name!r} cannot be a job type: it looks like a job id")
    if name in (".", ".."):
        raise InvalidOption(f"{name!r} cannot be a job type: in a URL it means another directory")
    return name


def check_priority(priority: int | str) -> int:
    if isinstance(priority, str):
        if priority not in PRIORITIES:
            raise InvalidOption(
                f"priority={priority!r}: use 0 to 100, or one of {', '.join(PRIORITIES)}", option="priority"
            )
        return PRIORITIES[priority]
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= 100:
        raise InvalidOption(
            f"priority={priority!r}: use 0 to 100, or one of {', '.join(PRIORITIES)}", option="priority"
        )
    return priority


def check_max_attempts(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= limits.MAX_ATTEMPTS_MAX:
        raise InvalidOption(f"max_attempts={count!r}: use 1 to {limits.MAX_ATTEMPTS_MAX}", option="max_attempts")
    return count


def check_timeout(timeout: float | timedelta) -> int:
    try:
        span = micros(timeout)
    except (TypeError, ValueError, OverflowError):
        span = 0
    if not 0 < span <= limits.TIMEOUT_SECONDS_MAX * 1_000_000:
        raise InvalidOption(
            f"timeout={timeout!r}: use seconds or a timedelta, above 0 and up to 30 days", option="timeout"
        )
    return span


Until = datetime | timedelta | float  # when something ends: a time, or how long from now


def check_until(until: Until, now: int) -> int:
    """Return when something ends that begins now: a time, or how long from now."""
    try:
        found = to_instant(until) if isinstance(until, datetime) else now + micros(until)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidOption(f"until={until!r:.60}: {error}", option="until") from None
    if not now < found <= now + limits.DELAY_SECONDS_MAX * 1_000_000:
        given = until.isoformat() if isinstance(until, datetime) else f"{until}"
        raise InvalidOption(f"until={given:.60}: use a time ahead, within ten years", option="until")
    return found


def check_payload_size(payload: str) -> str:
    # Encode only if the length alone cannot decide: a character takes one to four bytes.
    if len(payload) * 4 > limits.PAYLOAD_BYTES_MAX:
        size = len(payload.encode())
        if size > limits.PAYLOAD_BYTES_MAX:
            raise PayloadTooLarge(
                f"the payload has {size:,} bytes, over the limit of {limits.PAYLOAD_BYTES_MAX:,}"
                " (PAYLOAD_BYTES_MAX): store the data elsewhere and submit a reference to it"
            )
    return payload


def count(number: int, what: str) -> str:
    """Format a count: 1 job, 2 jobs, 1,204 jobs."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def after_attempts(failures: int | None, max_attempts: int | None) -> str:
    """Return after how many attempts a job failed; nothing if others made it fail before it had an attempt."""
    return f" after {failures} of {count(max_attempts or failures, 'attempt')}" if failures else ""


def span(seconds: float) -> str:
    """Format a duration: 350 ms, 12 s, 5 min, 2 h 30 min, 3 d."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 600:
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    hours = round(minutes / 60)
    return f"{hours} h" if hours < 48 else f"{round(hours / 24)} d"


def away(moment: datetime, now: datetime) -> str:
    """Format a time relative to now: 3 s ago, in 5 min."""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "just now" if seconds <= 0 else "in less than 1 s"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d} UTC"


def did_you_mean(given: str, known: Iterable[str], others: Mapping[str, str] = _NO_OTHERS) -> str:
    """Return a hint for an unknown name: the closest known name, or all of them. `others` are names that people know
    from elsewhere."""
    names = list(known)
    close = closest(given, names, others)
    return f"did you mean {close}?" if close else f"known: {', '.join(names) or 'none'}"


def closest(given: str, known: Collection[str], others: Mapping[str, str] = _NO_OTHERS) -> str | None:
    import difflib  # imported here: a worker never needs it, and it takes memory

    [*found] = difflib.get_close_matches(given, [*known, *others], 1)
    return others.get(found[0], found[0]) if found else None


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra. The only place that says where Backstay is installed from."""
    return (
        f"run pip install '.[{extra}]' in a checkout, or pip install 'backstay-VERSION-py3-none-any.whl[{extra}]'"
        f" with a built wheel (once it is published: pip install 'backstay[{extra}]')"
    )


_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


def check_bytes(name: str, given: int | str | None) -> int | None:
    """Return a number of bytes: as a number, or as text such as 500M or 1.5GiB, in powers of 1,024."""
    if given is None:
        return None
    found = _BYTES.fullmatch(given.strip()) if isinstance(given, str) else None
    size = given if found is None else int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " "))
    if isinstance(size, bool) or not isinstance(size, int) or size < limits.MIB:
        raise InvalidOption(f"{name}={given!r:.40}: use a size such as 500M or 2G, or bytes; at least 1M", option=name)
    return size


def check_count(name: str, given: int | None) -> int | None:
    """Return a number of things from 1, or None."""
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 1):
        raise InvalidOption(f"{name}={given!r:.40}: use an integer of 1 or more, or leave it out", option=name)
    return given

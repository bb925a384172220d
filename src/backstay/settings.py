"""Settings: from the option, else BACKSTAY_… in the environment, else [tool.backstay] in pyproject.toml."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from backstay import limits
from backstay.errors import ConfigurationError

T = TypeVar("T")
DEFAULT_URL = "sqlite:///backstay.db"


def setting(name: str, given: T | None, convert: Callable[[Any], T], default: T) -> T:
    """Return a setting's value, converted; raise ConfigurationError if it is invalid."""
    value, source = _found(name, given)
    if value is None:
        return default
    try:
        return convert(value)
    except (TypeError, ValueError):
        expected = convert.__name__ if isinstance(convert, type) else convert.__doc__
        raise ConfigurationError(f"{source}={value!r} cannot be read: expected {expected}") from None


def _found(name: str, given: Any) -> tuple[Any, str]:
    """Return the value, and its source."""
    if given not in (None, ""):
        return given, name
    variable = f"BACKSTAY_{name.upper()}"
    if given is None and (value := os.environ.get(variable)):
        return value, variable
    return _pyproject(os.getcwd()).get(name), f"[tool.backstay] {name}"


def used(name: str, given: Any, use: Callable[[], T]) -> T:
    """Run `use`; if the setting is invalid, name its source in the error, unless the caller passed it."""
    try:
        return use()
    except ConfigurationError as error:
        value, source = _found(name, given)
        if value is None or source == name:
            raise
        raise ConfigurationError(f"{source}: {error}") from None


@functools.lru_cache(maxsize=4)
def _pyproject(folder: str) -> dict[str, Any]:
    path = Path(folder) / "pyproject.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    import tomllib  # here: most processes find no such file, and it takes memory

    try:
        table = tomllib.loads(text).get("tool", {}).get("backstay", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from None
    return table if isinstance(table, dict) else {}


def seconds_above_zero(value: Any) -> float:
    """seconds, above 0"""
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def count_above_zero(value: Any) -> int:
    """a whole number from 1"""
    number = int(value)
    if number < 1:
        raise ValueError
    return number


def url(given: str | None = None) -> str:
    """The queue's URL."""
    found = setting("url", given, str, DEFAULT_URL)
    scheme, colon, rest = found.partition(":")
    return f"{scheme.lower()}{colon}{rest}" if colon else found  # DYNAMODB:// is dynamodb://


def lease(given: float | None = None) -> float:
    """How long a claim lasts without a heartbeat, in seconds."""
    return setting("lease", given, seconds_above_zero, limits.LEASE_SECONDS)


def poll_interval(given: float | None = None, usual: float = limits.POLL_SECONDS) -> float:
    """How often a worker polls when nothing wakes it, in seconds."""
    return setting("poll_interval", given, seconds_above_zero, usual)


def concurrency(given: int | None = None) -> int:
    """How many jobs one worker runs at a time."""
    return setting("concurrency", given, count_above_zero, limits.CONCURRENCY)


def claim_limit(given: int | None = None) -> int:
    """The maximum number of jobs per claim."""
    return setting("claim_limit", given, count_above_zero, limits.CLAIM_LIMIT)


def grace(given: float | None = None) -> float:
    """How long a stopping worker lets its jobs finish, in seconds."""
    return setting("grace", given, float, limits.GRACE_SECONDS)


def switch(value: Any) -> bool:
    """1 or 0"""
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    try:
        return words[str(value).strip().lower()]
    except KeyError:
        raise ValueError from None


def otel(given: bool | None = None) -> bool:
    """Whether to create OpenTelemetry spans."""
    return setting("otel", given, switch, False)


def sentry_dsn(given: str | None = None) -> str:
    """Where failures are reported; None for nowhere."""
    return setting("sentry_dsn", given, str, "")


def span_or_never(value: Any) -> float | None:
    """seconds, not below 0, or "never\""""
    if value == "never":
        return None
    number = float(value)
    if not 0 <= number < float("inf"):
        raise ValueError
    return number


def release() -> str:
    """Return the version of the installed package."""
    try:
        return importlib.metadata.version("backstay")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"  # a checkout on the path, not installed

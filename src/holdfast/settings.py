"""Settings: by option, else by HOLDFAST_… in the environment, else in [tool.holdfast] of pyproject.toml."""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from holdfast import limits
from holdfast.errors import ConfigurationError

T = TypeVar("T")
DEFAULT_URL = "sqlite:///holdfast.db"


def setting(name: str, given: T | None, convert: Callable[[Any], T], default: T) -> T:
    value, source = _found(name, given)
    if value is None:
        return default
    try:
        return convert(value)
    except (TypeError, ValueError):
        expected = convert.__name__ if isinstance(convert, type) else convert.__doc__
        raise ConfigurationError(f"{source}={value!r} cannot be read: expected {expected}") from None


def _found(name: str, given: Any) -> tuple[Any, str]:
    """The value, and who said it."""
    if given not in (None, ""):
        return given, name
    variable = f"HOLDFAST_{name.upper()}"
    if given is None and (value := os.environ.get(variable)):
        return value, variable
    return _pyproject(os.getcwd()).get(name), f"[tool.holdfast] {name}"


def used(name: str, given: Any, use: Callable[[], T]) -> T:
    """Where a setting cannot be meant, say who said it, unless that is the caller himself."""
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
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {}).get("holdfast", {})
    except (OSError, UnicodeDecodeError):
        return {}
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
    found = setting("url", given, str, DEFAULT_URL)
    scheme, colon, rest = found.partition(":")
    return f"{scheme.lower()}{colon}{rest}" if colon else found  # DYNAMODB:// is dynamodb://


def lease(given: float | None = None) -> float:
    return setting("lease", given, seconds_above_zero, limits.LEASE_SECONDS)


def poll_interval(given: float | None = None, usual: float = limits.POLL_SECONDS) -> float:
    return setting("poll_interval", given, seconds_above_zero, usual)


def concurrency(given: int | None = None) -> int:
    return setting("concurrency", given, count_above_zero, limits.CONCURRENCY)


def claim_limit(given: int | None = None) -> int:
    return setting("claim_limit", given, count_above_zero, limits.CLAIM_LIMIT)


def grace(given: float | None = None) -> float:
    return setting("grace", given, float, limits.GRACE_SECONDS)


def switch(value: Any) -> bool:
    """1 or 0"""
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    try:
        return words[str(value).strip().lower()]
    except KeyError:
        raise ValueError from None


def otel(given: bool | None = None) -> bool:
    return setting("otel", given, switch, False)


def sentry_dsn(given: str | None = None) -> str:
    return setting("sentry_dsn", given, str, "")


def span_or_never(value: Any) -> float | None:
    """seconds, not below 0, or "never\""""
    if value == "never":
        return None
    number = float(value)
    if not 0 <= number < float("inf"):
        raise ValueError
    return number

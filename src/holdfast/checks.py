"""Checks of text that callers hand in, shared by all who take some."""

from __future__ import annotations

from typing import Any

from holdfast.errors import InvalidOption


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

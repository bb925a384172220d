"""What is stored, as a terminal may show it: escaped, in one line where one is meant, with times people read."""

from __future__ import annotations

import re
from datetime import timedelta

from holdfast.words import away, count, span, utc

# Controls (an ESC in an error message could retitle or repaint the terminal), C1 controls (some terminals still obey
# them), and the marks that turn the direction of text around what a reader sees. Lone surrogates cannot be printed.
_UNSAFE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff"
_ANY = re.compile(f"[{_UNSAFE}]")
_IN_LINES = re.compile(f"(?!\n)[{_UNSAFE}]")
_IN_JSON = re.compile(f"(?![\n\t])[{_UNSAFE}]")
_PASSWORD = re.compile(r"(://[^/?@]*?:)[^@/]+(?=@)|([?&]password=)[^&]+")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


__all__ = ["away", "count", "duration", "safe", "safe_json", "safe_lines", "span", "utc", "without_password"]


def safe(text: str) -> str:
    """One line in which nothing is invisible."""
    return _ANY.sub(_escape, text)


def safe_lines(text: str) -> str:
    """The same for text of several lines."""
    return _IN_LINES.sub(_escape, text.replace("\t", "    "))


def safe_json(document: str) -> str:
    """JSON escapes the controls below 0x20 by itself; the others become \\u escapes, which mean the same."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def without_password(url: str) -> str:
    """A URL for people: what it says ends up in logs and on slides."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}…", url)


_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")


def duration(text: str) -> timedelta:
    """90, 90s, 5m, 1h30m, 2d. ValueError where it is none of these."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is no length of time: write seconds, or 90s, 5m, 1h30m, 2d")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)

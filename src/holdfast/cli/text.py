"""What is stored, as a terminal may show it: escaped, in one line where one is meant, with times people read."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from holdfast.words import count

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


# Times


def span(seconds: float) -> str:
    """A length of time, as short as it can be said: 350 ms, 12 s, 5 min, 2 h 30 min, 3 d."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes and hours < 10 else f"{hours} h"
    return f"{hours // 24} d"


def away(moment: datetime, now: datetime) -> str:
    """How far a moment is from now: 3 s ago, in 5 min."""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 1:
        return "just now" if seconds <= 0 else "now"
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d} UTC"


_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")


def duration(text: str) -> timedelta:
    """90, 90s, 5m, 1h30m, 2d. ValueError where it is none of these."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is no length of time: write seconds, or 90s, 5m, 1h30m, 2d")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)

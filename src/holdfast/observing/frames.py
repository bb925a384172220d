"""A traceback as text, as Sentry wants it: frames. Pure.

The text is all there is: the attempt may have run in another process, on another machine, in another language. No local
variables are in it, which is as it should be.
"""

from __future__ import annotations

import re
from typing import Any

_FRAME = re.compile(
    r'^ +File "(?P<path>[^"\n]+)", line (?P<line>\d+), in (?P<function>[^\n]+)\n(?: {4,}(?P<code>[^\n]+)\n)?',
    re.MULTILINE,
)
_HEAD = "Traceback (most recent call last):"
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")


def frames_of(traceback: str) -> list[dict[str, Any]]:
    """Oldest call first. Of an exception that was raised while another was handled, its own frames."""
    last = traceback.rpartition(_HEAD)[2]
    return [_frame(each) for each in _FRAME.finditer(f"{last}\n")]


def _frame(found: re.Match[str]) -> dict[str, Any]:
    path = found["path"]
    frame: dict[str, Any] = {
        "filename": path.rpartition("/")[2],
        "abs_path": path,
        "function": found["function"],
        "lineno": int(found["line"]),
        "in_app": not any(each in path for each in _LIBRARIES),
    }
    if found["code"] is not None and not set(found["code"]) <= {"^", "~", " "}:
        frame["context_line"] = found["code"]
    return frame

"""What the library logs while a command runs, said as the command says things."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from holdfast.cli import output

_log = logging.getLogger("holdfast")


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.add(record.getMessage())
        output.say(record.getMessage())


@contextlib.contextmanager
def said() -> Iterator[set[str]]:
    """The lines that were said; an error that one of them has told need not be told again."""
    handler = _Said()
    _log.addHandler(handler)
    try:
        yield handler.lines
    finally:
        _log.removeHandler(handler)


def leave_to_others() -> None:
    """For a command that prints the log itself."""
    for handler in [each for each in _log.handlers if isinstance(each, _Said)]:
        _log.removeHandler(handler)

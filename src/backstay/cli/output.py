"""Output: tables that fit the terminal, plain text for pipes, JSON for machines, notices, and exit codes.

Stored text is escaped before it reaches a terminal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar

import msgspec

from backstay.core.states import Status
from backstay.errors import (
    ArtifactNotFound,
    BackstayError,
    ConfigurationError,
    InvalidSubmission,
    JobCancelled,
    JobNotFound,
    KeyNotFound,
    QueueFull,
    ResultTimeout,
    ScheduleNotFound,
)
from backstay.job import Job
from backstay.ops import presentation

if TYPE_CHECKING:
    from rich.console import Console, OverflowMethod


# Controls (an ESC in an error message could retitle or repaint the terminal), C1 controls (some terminals still obey
# them), and the marks that turn the direction of text around what a reader sees. Lone surrogates cannot be printed.
_UNSAFE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff"
_ANY = re.compile(f"[{_UNSAFE}]")
_IN_LINES = re.compile(f"(?!\n)[{_UNSAFE}]")
_IN_JSON = re.compile(f"(?![\n\t])[{_UNSAFE}]")
_PASSWORD = re.compile(r"(://[^/?@]*?:)[^@/]+(?=@)|([?&]password=)[^&]+")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def safe(text: str) -> str:
    """Return the text as one line without invisible characters."""
    return _ANY.sub(_escape, text)


def safe_lines(text: str) -> str:
    """Return text of several lines without invisible characters."""
    return _IN_LINES.sub(_escape, text.replace("\t", "    "))


def safe_json(document: str) -> str:
    """Write invisible characters in JSON as escapes, which mean the same. JSON itself escapes only those below 0x20."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def without_password(url: str) -> str:
    """Return a URL without its password, for logs and messages."""
    return _PASSWORD.sub(lambda found: f"{found[1] or found[2]}…", url)


_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")


def duration(text: str) -> timedelta:
    """Parse 90, 90s, 5m, 1h30m or 2d; raise ValueError for anything else."""
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is not a duration: write seconds, or 90s, 5m, 1h30m, 2d")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


T = TypeVar("T")
WIDE = 120  # columns of a terminal from which the wide columns of a table are shown
WHOLE_IDS = 160  # … and whole ids: 36 characters that would crowd out what a person reads
_NO_TERMINAL = 10_000  # a pipe cuts nothing

STATUS_STYLES = {
    "waiting": "dim",
    "scheduled": "cyan",
    "pending": "blue",
    "processing": "yellow",
    "retrying": "magenta",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
}


def say(line: str) -> None:
    """Print a line about the result for people, never on stdout."""
    text = f"backstay: {safe(line)}"
    if sys.stderr.isatty():
        text = textwrap.fill(text, _columns(sys.stderr), break_long_words=False, break_on_hyphens=False)
    print(text, file=sys.stderr, flush=True)


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(
        file=stream,
        markup=False,  # stored text is text, not markup
        highlight=False,
        emoji=False,
        width=None if stream.isatty() else _NO_TERMINAL,
    )


def width() -> int | None:
    """Return the width of the terminal that stdout is, or None if it is not a terminal."""
    return _columns(sys.stdout) if sys.stdout.isatty() else None


def _columns(stream: TextIO) -> int:
    """Return the width as rich determines it: from COLUMNS, else from the terminal."""
    given = os.environ.get("COLUMNS", "")
    try:
        return int(given) if given.isdecimal() else os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def draws() -> bool:
    """Return whether stdout is a terminal that shows more than ASCII. Files and pipes get ASCII."""
    try:
        "▁█├─→·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return sys.stdout.isatty()


def arrow() -> str:
    return "→" if draws() else "->"


def short_id(job_id: str) -> str:
    """Return the end of an id, for places where the whole id would leave no room. Every command accepts it."""
    return job_id[-12:]


def named(job_id: str) -> str:
    """Return an id for use in a sentence: its end on a terminal, the whole id elsewhere."""
    columns = width()
    return job_id if columns is None or columns >= WHOLE_IDS else f"{'…' if draws() else '...'}{short_id(job_id)}"


def emit_paragraph(text: str, *, first: str = "", style: str = "") -> None:
    """Print text, wrapped between words on a terminal and as one line elsewhere. Further lines are indented to the text
    of the first one, whose first word may be coloured."""
    columns = width()
    line = first + safe(text)
    if columns is None:
        print(line)
        return
    wrapped = textwrap.fill(line, columns, subsequent_indent=" " * len(first), break_on_hyphens=False)
    if not style:
        print(wrapped)
        return
    from rich.text import Text

    shown = Text(wrapped)
    shown.stylize(style, 0, len(first.partition(" ")[0]))
    console().print(shown, soft_wrap=True)


def emit_json(document: Any) -> None:
    """Print JSON: on one line for a pipe; on several for people, if one would not fit."""
    print(as_json(document, width()))


def as_json(document: Any, width: int | None) -> str:
    """Format JSON within `width` columns, or on one line without spaces if there is no width."""
    raw = msgspec.json.encode(document)
    if width is not None:
        line = msgspec.json.format(raw, indent=0)
        raw = line if len(line) <= width else msgspec.json.format(raw, indent=2)
    return safe_json(raw.decode())


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    title: str
    value: Callable[[T], str]
    cut: bool = False  # gives way when the terminal is narrow
    wrap: bool = False  # wraps to further lines instead
    wide: bool = False  # only where there is room
    right: bool = False
    is_id: bool = False  # a job's: its end, where there is no room
    style: Callable[[T], str] = lambda _: ""


def emit_table(columns: Iterable[Column[T]], rows: Iterable[T]) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    shown = [column for column in columns if screen.width >= WIDE or not column.wide]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in shown:
        table.add_column(
            column.title, justify="right" if column.right else "left", no_wrap=not (column.cut or column.wrap)
        )

    def cell(column: Column[T], row: T) -> Text:
        value = column.value(row)
        shown = short_id(value) if column.is_id and screen.width < WHOLE_IDS else value
        overflow: OverflowMethod = "fold" if column.wrap else "ellipsis"
        return Text(safe(shown), column.style(row), no_wrap=not column.wrap, overflow=overflow)

    for row in rows:
        table.add_row(*(cell(column, row) for column in shown))
    with screen.capture() as captured:
        screen.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def note(job: Job, now: datetime, *, percent: bool = True) -> str:
    """Return a note on a job for the column next to its status."""
    return presentation.note(job, now, percent=percent, named=named)


def short_line(job: Job, now: datetime) -> str:
    """Return a line on a job, to show next to its progress bar."""
    return presentation.short_line(job, now, named=named)


def progress_line(job: Job, now: datetime) -> str:
    """Return a line on a job, for following it line by line."""
    return presentation.progress_line(job, now, named=named)


_log = logging.getLogger("backstay")


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.add(record.getMessage())
        say(record.getMessage())


@contextlib.contextmanager
def said() -> Iterator[set[str]]:
    """Collect the lines that are printed meanwhile, so that an error that one of them reported is not repeated."""
    handler = _Said()
    _log.addHandler(handler)
    try:
        yield handler.lines
    finally:
        _log.removeHandler(handler)


def leave_to_others() -> None:
    """Stop printing log lines, for a command that prints the log itself."""
    for handler in [each for each in _log.handlers if isinstance(each, _Said)]:
        _log.removeHandler(handler)


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    CANCELLED = 3
    TIMEOUT = 4
    NOT_FOUND = 5
    INTERRUPTED = 130


MEANINGS = {
    Exit.OK: "success: done, the job completed, or the worker stopped cleanly",
    Exit.FAILED: "the job or the command failed, or a worker was cut off; stderr says why",
    Exit.USAGE: "invalid option, setting, app or payload",
    Exit.CANCELLED: "the job was cancelled",
    Exit.TIMEOUT: "the job did not end within --timeout; it is still active",
    Exit.NOT_FOUND: "no such job, schedule, key or artifact",
    Exit.INTERRUPTED: "interrupted with Ctrl-C; stored jobs are safe",
}


class Interrupted(Exception):
    """Raised on Ctrl-C by a command that has something to say about it."""


def confirm(question: str) -> bool:
    """Ask on the terminal; anything but yes means no."""
    print(safe(f"{question} [y/N] "), end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def of_error(error: BackstayError) -> Exit:
    match error:
        case JobCancelled():
            return Exit.CANCELLED
        case ResultTimeout():
            return Exit.TIMEOUT
        case JobNotFound() | ScheduleNotFound() | KeyNotFound() | ArtifactNotFound():
            return Exit.NOT_FOUND
        case QueueFull():  # nothing is wrong with what was asked; later it works
            return Exit.FAILED
        case ConfigurationError() | InvalidSubmission():
            return Exit.USAGE
        case _:
            return Exit.FAILED


def of_status(status: Status) -> Exit:
    """Return the exit code for a job that has ended."""
    match status:
        case Status.COMPLETED:
            return Exit.OK
        case Status.CANCELLED:
            return Exit.CANCELLED
        case _:
            return Exit.FAILED


def table() -> str:
    """For the end of `backstay --help`; the \\b keeps its lines as they are."""
    lines = (f"  {code.value:<4} {meaning}" for code, meaning in MEANINGS.items())
    return "\b\nExit codes:\n" + "\n".join(lines)

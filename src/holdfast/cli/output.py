"""Printing: tables that fit the terminal, plain text where there is none, and JSON for machines."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TextIO, TypeVar

import msgspec

from holdfast.cli.text import safe, safe_json

if TYPE_CHECKING:
    from rich.console import Console, OverflowMethod

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
    """Something about the result, for the person; never on stdout."""
    text = f"holdfast: {safe(line)}"
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
    """The columns of the terminal that stdout is; None where it is none."""
    return _columns(sys.stdout) if sys.stdout.isatty() else None


def _columns(stream: TextIO) -> int:
    """As rich counts them: what COLUMNS says, else what the terminal says."""
    given = os.environ.get("COLUMNS", "")
    try:
        return int(given) if given.isdecimal() else os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80


def draws() -> bool:
    """Whether stdout is a terminal that shows more than ASCII; a file or a pipe gets ASCII."""
    try:
        "▁█├─→·".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return sys.stdout.isatty()


def arrow() -> str:
    return "→" if draws() else "->"


def short_id(job_id: str) -> str:
    """The end of an id, where all of it would crowd out the rest; every command takes it for the whole."""
    return job_id[-12:]


def named(job_id: str) -> str:
    """An id within a sentence: its end on a terminal, whole elsewhere."""
    columns = width()
    return job_id if columns is None or columns >= WHOLE_IDS else f"{'…' if draws() else '...'}{short_id(job_id)}"


def emit_paragraph(text: str, *, first: str = "", style: str = "") -> None:
    """Wrapped between words on a terminal; one line elsewhere. Further lines stand under the text of the first, whose
    first word may have a colour."""
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
    """For a pipe one line; for eyes several, where one would not fit."""
    print(as_json(document, width()))


def as_json(document: Any, width: int | None) -> str:
    """Readable within `width` columns; in one line, without spaces, where there is no width to heed."""
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
    wrap: bool = False  # goes on in further lines instead
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

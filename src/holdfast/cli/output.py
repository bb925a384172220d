"""Printing: tables that fit the terminal, plain text where there is none, and JSON for machines."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from holdfast.cli.text import safe, safe_json

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
WIDE = 120  # columns of a terminal from which the wide columns of a table are shown
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
    print(f"holdfast: {safe(line)}", file=sys.stderr, flush=True)


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


def emit_json(document: Any) -> None:
    """For a pipe one line; for eyes several, where one would not fit."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(as_json(document, width))


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
    wide: bool = False  # only where there is room
    right: bool = False
    style: Callable[[T], str] = lambda _: ""


def emit_table(columns: Iterable[Column[T]], rows: Iterable[T]) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    shown = [column for column in columns if screen.width >= WIDE or not column.wide]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in shown:
        table.add_column(column.title, justify="right" if column.right else "left", no_wrap=not column.cut)
    for row in rows:
        table.add_row(
            *(Text(safe(column.value(row)), column.style(row), no_wrap=True, overflow="ellipsis") for column in shown)
        )
    with screen.capture() as captured:
        screen.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())

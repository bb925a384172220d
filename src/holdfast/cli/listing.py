"""A group of commands by itself lists what there is: one way for keys, queues and schedules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar

from holdfast.app import Holdfast
from holdfast.cli import apps, output
from holdfast.cli.output import Column
from holdfast.clock import to_datetime

T = TypeVar("T")


def show(
    read: Callable[[Holdfast], Awaitable[list[T]]],
    columns: Callable[[datetime], list[Column[T]]],
    none: str,
    *,
    as_json: bool,
    url: str | None,
    app: str | None,
) -> None:
    """`none` is said where there are none: how one comes to be."""

    async def work(app: Holdfast) -> tuple[list[T], datetime]:
        return await read(app), to_datetime(app.clock.now())

    rows, now = apps.run(url, app, work)
    if as_json:
        output.emit_json({"items": rows})
    elif rows:
        output.emit_table(columns(now), rows)
    else:
        output.say(none)

"""holdfast stats: how many jobs are in each state, and what happened in the last minutes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
import typer

from holdfast.cli import apps, output
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.output import Column
from holdfast.cli.text import count, span
from holdfast.lifecycle import Status
from holdfast.stats import Figures, Stats, TypeFigures

_DRAWN = "·▁▂▃▄▅▆▇█"  # the first is none at all
_PLAIN = "._:-=+*#@"
BARS_MAX = 60  # a bar stands for as many minutes as it takes


def stats(
    minutes: Annotated[int, typer.Option(metavar="N", help="How far back; default 60.")] = 60,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Count jobs by state, and what happened in the last minutes."""
    found = apps.run(url, app, lambda each: each.stats(minutes))
    if as_json:
        output.emit_json({**msgspec.to_builtins(found, builtin_types=(datetime,)), "per_minute": found.per_minute})
        return
    output.emit_paragraph(f"Now: {_states(found.counts)}.")
    output.emit_paragraph(f"Last {_length(minutes)}: {_events(found)}.")
    if found.total.average_time_ms is not None and found.total.average_wait_ms is not None:
        output.emit_paragraph(
            f"On average an attempt took {span(found.total.average_time_ms / 1000)}"
            f" and began {span(found.total.average_wait_ms / 1000)} after it was due."
        )
    if found.total.completed:
        print()
        _emit_bars(found, minutes)
    if found.by_type:
        print()
        output.emit_table(_COLUMNS, found.by_type)


def _states(counts: dict[str, int]) -> str:
    return _listed({status.value: counts.get(status, 0) for status in Status}) or "no jobs"


def _events(found: Stats) -> str:
    total = found.total
    completed = f"completed ({_rate(found.per_minute)})"
    return _listed({
        "submitted": total.submitted,
        completed: total.completed,
        "failed": total.failed,
        "cancelled": total.cancelled,
        "retried": total.retried,
        "snoozed": total.snoozed,
        "given back": total.given_back,
        "retried by hand": total.retried_by_hand,
        "rescued from lost workers": total.rescued,
        f"reused (saved {span(total.saved_ms / 1000)})": total.reused,
    }) or "nothing happened"  # fmt: skip


def _listed(numbers: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in numbers.items() if number)


def _rate(per_minute: float) -> str:
    for unit, minutes in (("a minute", 1), ("an hour", 60)):
        if (number := per_minute * minutes) >= 0.1:
            return f"{number:,.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"
    return f"{per_minute * 24 * 60:.2g} a day"


def _length(minutes: int) -> str:
    return count(minutes, "minute") if minutes <= 120 else span(minutes * 60)


def _emit_bars(found: Stats, minutes: int) -> None:
    per_bar = -(-minutes // min(BARS_MAX, output.width() or BARS_MAX))
    sums = [0] * -(-minutes // per_bar)
    for each in found.by_minute:
        sums[int((each.minute - found.since).total_seconds() // 60 // per_bar)] += each.completed
    what = "minute" if per_bar == 1 else _length(per_bar)
    form = "%H:%M" if minutes <= 12 * 60 else "%Y-%m-%d %H:%M"
    output.emit_paragraph(
        f"Completed per {what}, from {found.since:{form}} to {found.until:{form}} UTC; at most {max(sums):,}:"
    )
    print(bars(sums, _DRAWN if output.draws() else _PLAIN))


def bars(numbers: list[int], levels: str) -> str:
    """One character for each number, the highest for the largest; only zero gets the first."""
    top = max(numbers, default=0) or 1
    highest = len(levels) - 1
    return "".join(levels[number and max(1, round(number * highest / top))] for number in numbers)


def _average(millis: float | None) -> str:
    return "" if millis is None else span(millis / 1000)


def _number(figures: Figures, name: str) -> str:
    number: int = getattr(figures, name)
    return f"{number:,}" if number else ""


_COLUMNS: list[Column[TypeFigures]] = [
    Column("TYPE", lambda each: each.job_type, cut=True),
    Column("QUEUE", lambda each: each.queue, cut=True),
    Column("SUBMITTED", lambda each: _number(each, "submitted"), right=True),
    Column("COMPLETED", lambda each: _number(each, "completed"), right=True),
    Column("FAILED", lambda each: _number(each, "failed"), right=True),
    Column("RETRIED", lambda each: _number(each, "retried"), right=True),
    Column("CANCELLED", lambda each: _number(each, "cancelled"), right=True, wide=True),
    Column("SNOOZED", lambda each: _number(each, "snoozed"), right=True, wide=True),
    Column("REUSED", lambda each: _number(each, "reused"), right=True, wide=True),
    Column("TOOK", lambda each: _average(each.average_time_ms), right=True),
    Column("WAITED", lambda each: _average(each.average_wait_ms), right=True),
]

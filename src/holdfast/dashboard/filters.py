"""How templates say numbers, times and documents."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from jinja2 import Environment

from holdfast import notes
from holdfast.dashboard.search import quoted
from holdfast.job import Job
from holdfast.words import away, count, span, utc

SHOWN_BYTES_MAX = 64 * 1024  # of a payload, a result, a trace: more than anyone reads on a page


def install(templates: Environment) -> None:
    templates.filters.update(
        away=away, count=count, span=span, utc=utc, iso=iso, number=number, percent=percent, document=document,
        short=short, millis=millis, note=note, since=since, compact=compact, size=size, quoted=quoted,
    )  # fmt: skip


def iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def number(value: float) -> str:
    """1,204; numbers that are no counts get the digits that matter."""
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def size(count: int) -> str:
    """Of a file: 640 bytes, 12 kB, 3.4 MB."""
    if count < 1000:
        return f"{count} {'byte' if count == 1 else 'bytes'}"
    for unit, whole in (("kB", 10**3), ("MB", 10**6), ("GB", 10**9)):
        if count < whole * 1000 or unit == "GB":
            return f"{count / whole:.3g} {unit}" if count < whole * 999.5 else f"{count / whole:,.0f} {unit}"
    raise AssertionError("there is a unit for every size")


def percent(share: float) -> str:
    return f"{share * 100:.0f}%"


def millis(value: float | None) -> str:
    """A length of time that was measured in milliseconds."""
    return "–" if value is None else span(value / 1000)


def short(job_id: str) -> str:
    """The end of an id: ids made at about the same time differ there."""
    return f"…{job_id[-8:]}" if len(job_id) > 12 else job_id


def compact(value: Any) -> str:
    """JSON in one line."""
    return json.dumps(value, ensure_ascii=False, default=str)


def since(moment: datetime, now: datetime) -> str:
    return span(max(0.0, (now - moment).total_seconds()))


def note(job: Job, now: datetime) -> str:
    """What a job is at; its bar says how far."""
    return notes.note(job, now, percent=False, named=short)


def document(value: Any) -> tuple[str, bool]:
    """JSON as people read it, and whether that is all of it."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return (text, True) if len(text) <= SHOWN_BYTES_MAX else (text[:SHOWN_BYTES_MAX], False)

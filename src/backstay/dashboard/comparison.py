"""Two runs about a subject side by side: what differs in configuration, figures and rows.

A run is a job with everything below it. Its parts are matched by stage, or else by type; what both have in common is
only counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from fastapi import Depends, Request, Response

from backstay.app import Backstay
from backstay.core.checks import UUID
from backstay.core.states import Status
from backstay.dashboard import job_content, subjects
from backstay.dashboard import page as dashboard_page
from backstay.errors import JobNotFound, RowsWithdrawn
from backstay.job import Job
from backstay.results.model import OWN
from backstay.server import visibility
from backstay.server.auth import App, Principal, Who, needs, visible

RUNS_MAX = 50  # completed runs to choose from
PARTS_MAX = 30  # jobs of a run
LEAVES_MAX = 300  # values of a payload or result
ROWS_MAX = 2_000  # of a table, from the first key on
ROWS_PART = 500
ROWS_SHOWN = 20  # that differ
CELLS_SHOWN = 5  # of such a row
CELL_MAX = 120  # characters
TEXT_MAX = 80  # characters of a text that counts as a figure

router = dashboard_page.pages()


class Pair(msgspec.Struct, frozen=True):
    """A value on both sides; None where there is none. `change`: of numbers, how much the second is more."""

    name: str
    left: str | None
    right: str | None
    change: float | None = None


class Values(msgspec.Struct, frozen=True):
    differing: Sequence[Pair]
    same: int


class RowPair(msgspec.Struct, frozen=True):
    key: str
    cells: Sequence[Pair]
    more: int  # differing cells that are not shown


class Rows(msgspec.Struct, frozen=True):
    """The rows of a table on both sides, up to a key where there are many."""

    table: str
    left: int
    right: int
    only_left: Sequence[str]
    only_right: Sequence[str]
    different: int
    shown: Sequence[RowPair]  # the first that differ
    same: int
    is_all: bool


class Part(msgspec.Struct, frozen=True):
    name: str
    left: Job | None
    right: Job | None
    configuration: Values
    figures: Values
    tables: Sequence[Rows]


@router.get("/subjects/compare", dependencies=[Depends(needs("read"))])
async def page(request: Request, app: App, who: Who) -> Response:
    given = request.query_params
    subject = given.get("subject", "").strip()
    runs = await _runs(app, who, subject) if subject else []
    left = await _run(app, who, subject, given.get("left")) or (runs[1] if len(runs) > 1 else None)
    right = await _run(app, who, subject, given.get("right")) or (runs[0] if runs else None)
    both = left is not None and right is not None and left.job_id != right.job_id
    return dashboard_page.render(
        request,
        "compare.html",
        subject=subject,
        runs=runs,
        left=left,
        right=right,
        parts=await _parts(app, who, left, right) if left is not None and right is not None and both else None,
    )


async def _runs(app: Backstay, who: Principal, subject: str) -> list[Job]:
    """The completed runs, newest first; those of the type that ran last come before others."""
    found = await visibility.found(app, who, subject=subject, status=Status.COMPLETED, limit=subjects.RECENT_PART)
    runs = [job for job in found if job.parent_job_id is None][:RUNS_MAX]
    return sorted(runs, key=lambda job: job.job_type != runs[0].job_type)


async def _run(app: Backstay, who: Principal, subject: str, job_id: str | None) -> Job | None:
    if not job_id:
        return None
    job = await visible(app, who, job_id)
    if job.subject != subject:
        raise JobNotFound(f"job {job.job_id} has a different subject")
    return job


# Parts of runs


async def _parts(app: Backstay, who: Principal, left: Job, right: Job) -> list[Part]:
    ours, theirs = await _named(app, who, left), await _named(app, who, right)
    names = [*ours, *(name for name in theirs if name not in ours)]
    repeated = [
        job.result for side in (ours, theirs) for job in list(side.values())[1:] if isinstance(job.result, dict)
    ]
    return [await _part(app, name, ours.get(name), theirs.get(name), repeated) for name in names]


async def _named(app: Backstay, who: Principal, run: Job) -> dict[str, Job]:
    """The jobs of a run by stage or type, in the order in which they started. Of several with one name, the others get
    a number."""
    below = await visibility.found(app, who, root=run.job_id, limit=PARTS_MAX)
    members = [run, *sorted((job for job in below if job.job_id != run.job_id), key=_started)]
    found: dict[str, Job] = {}
    for job in members[:PARTS_MAX]:
        name = job.job_stage or job.job_type
        number = 1
        while (numbered := name if number == 1 else f"{name} {number}") in found:
            number += 1
        found[numbered] = job
    return found


def _started(job: Job) -> tuple[datetime, str]:
    return job.started_at or job.created_at, job.job_id


async def _part(
    app: Backstay, name: str, left: Job | None, right: Job | None, repeated: Sequence[dict[str, Any]]
) -> Part:
    payloads = [{} if job is None else leaves(await job_content.payload_of(app, job)) for job in (left, right)]
    tables = dict.fromkeys(each for job in (left, right) if job is not None for each in job.result_tables)
    return Part(
        name,
        left,
        right,
        compared(*payloads),
        compared(_figures(left, repeated), _figures(right, repeated)),
        [await _rows(app, table, left, right) for table in tables],
    )


# Values


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return the single values of a document by their paths; a list of single values is one."""
    found: dict[str, Any] = {}
    for place, leaf in _leaves(value, path):
        if len(found) == LEAVES_MAX:
            break
        found[place] = leaf
    return found


def _leaves(value: Any, path: str) -> Iterable[tuple[str, Any]]:
    match value:
        case dict() if value:
            for name, each in value.items():
                yield from _leaves(each, f"{path}.{name}" if path else str(name))
        case list() if any(isinstance(each, dict | list) for each in value):
            for number, each in enumerate(value):
                yield from _leaves(each, f"{path}[{number}]")
        case _:
            yield path or "value", value


def compared(left: Mapping[str, Any], right: Mapping[str, Any]) -> Values:
    differing, same = [], 0
    for name in [*left, *(name for name in right if name not in left)]:
        if name in left and name in right and left[name] == right[name]:
            same += 1
        else:
            differing.append(_pair(name, left, right))
    return Values(differing, same)


def _pair(name: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> Pair:
    one, other = left.get(name), right.get(name)
    return Pair(
        name,
        _cell(one) if name in left else None,
        _cell(other) if name in right else None,
        _change(one, other),
    )


def _cell(value: Any) -> str:
    text = job_content.cell(value)
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"


def _change(one: Any, other: Any) -> float | None:
    if isinstance(one, bool) or isinstance(other, bool):
        return None
    return other - one if isinstance(one, int | float) and isinstance(other, int | float) else None


def _figures(job: Job | None, repeated: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Run time, metrics, and the numbers and short texts of the result; not what names a job, and not the results of
    its stages, which a pipeline repeats in its own."""
    if job is None or job.status is not Status.COMPLETED or job.archived_at is not None:
        return {}
    found: dict[str, Any] = {}
    if job.processing_time_ms is not None:
        found["run time (s)"] = round(job.processing_time_ms / 1000, 3)
    found |= job.metrics
    shown = job_content.result_of(job)
    if not shown.bytes:
        found |= {name: value for name, value in leaves(_own(shown.value, repeated)).items() if _is_figure(value)}
    return found


def _own(value: Any, repeated: Sequence[dict[str, Any]]) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _own(each, repeated) for name, each in value.items() if each not in repeated}


def _is_figure(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_figure, value))
    if isinstance(value, str):
        return len(value) <= TEXT_MAX and UUID.search(value) is None
    return value is not None


# Rows


class _Read(msgspec.Struct):
    """The first rows of a job by key; `last`: the last key, if there are more."""

    by_key: dict[Any, dict[str, Any]]
    last: Any = None


async def _rows(app: Backstay, table: str, left: Job | None, right: Job | None) -> Rows:
    key = (await app.stored_rows.table(table)).key
    ours, theirs = await _read(app, table, key, left), await _read(app, table, key, right)
    ends = [each.last for each in (ours, theirs) if each.last is not None]
    end = min(ends) if ends else None
    one, other = ours.by_key, theirs.by_key
    both = [place for place in one if place in other]
    different = [place for place in both if one[place] != other[place]]

    def missing(have: Mapping[Any, Any], lack: Mapping[Any, Any]) -> list[str]:
        return [str(place) for place in have if place not in lack and (end is None or place <= end)]

    return Rows(
        table,
        len(one),
        len(other),
        missing(one, other),
        missing(other, one),
        len(different),
        [_row(place, one[place], other[place]) for place in different[:ROWS_SHOWN]],
        len(both) - len(different),
        end is None,
    )


def _row(key: Any, left: Mapping[str, Any], right: Mapping[str, Any]) -> RowPair:
    cells = compared(left, right).differing
    return RowPair(str(key), cells[:CELLS_SHOWN], len(cells[CELLS_SHOWN:]))


async def _read(app: Backstay, table: str, key: str, job: Job | None) -> _Read:
    found = _Read({})
    if job is None or table not in job.result_tables or job.archived_at is not None:
        return found
    after: str | None = None
    while True:
        try:
            page = await app.result_rows(job.job_id, table, after, ROWS_PART)
        except RowsWithdrawn:  # it is running again: there are no rows to compare
            return _Read({})
        for row in page:
            found.by_key[row[key]] = {name: value for name, value in row.items() if name not in OWN and name != key}
        after = page.next
        if after is None:
            return found
        if len(found.by_key) >= ROWS_MAX:
            found.last = page[-1][key]
            return found

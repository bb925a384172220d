"""`backstay stats` and `workers`: job counts, recent figures, and the state of each worker."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import msgspec
import typer

from backstay.app import Backstay
from backstay.cli import app_loader, output
from backstay.cli.options import AppName, AsJson, Url
from backstay.cli.output import STATUS_STYLES, Column
from backstay.clock import to_datetime, to_instant
from backstay.core import workers as core_workers
from backstay.core.checks import away, count, span
from backstay.core.records import FormerWorker, WorkerRow
from backstay.core.states import Status
from backstay.core.stats import Figures, Stats, TypeFigures
from backstay.core.workers import state_of
from backstay.job import Job
from backstay.limits import FIND_LIMIT_MAX

_DRAWN = "·▁▂▃▄▅▆▇█"  # the first is none at all
_PLAIN = "._:-=+*#@"
BARS_MAX = 60  # a bar stands for as many minutes as it takes


def stats(
    minutes: Annotated[int, typer.Option(metavar="N", help="Minutes to look back; default 60.")] = 60,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """Show job counts and recent throughput."""
    found = app_loader.run(url, app, lambda each: each.stats(minutes))
    if as_json:
        output.emit_json({**msgspec.to_builtins(found, builtin_types=(datetime,)), "per_minute": found.per_minute})
        return
    output.emit_paragraph(f"Now: {_states(found.counts)}.")
    output.emit_paragraph(f"Last {_length(minutes)}: {_events(found)}.")
    if found.total.average_time_ms is not None and found.total.average_wait_ms is not None:
        output.emit_paragraph(
            f"On average, an attempt took {span(found.total.average_time_ms / 1000)}"
            f" and started {span(found.total.average_wait_ms / 1000)} after it was due."
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
        "retried manually": total.retried_by_hand,
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
        f"Completed per {what}, {found.since:{form}} to {found.until:{form}} UTC (peak {max(sums):,}):"
    )
    print(bars(sums, _DRAWN if output.draws() else _PLAIN))


def bars(numbers: list[int], levels: str) -> str:
    """Return one character for each number; the largest number gets the highest bar, and only zero gets the lowest."""
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
    Column("AVG RUN", lambda each: _average(each.average_time_ms), right=True),
    Column("AVG WAIT", lambda each: _average(each.average_wait_ms), right=True),
]


_JOBS_SHOWN = 20  # of all workers together; "list --worker ID" has the others


def workers(
    also_former: Annotated[
        bool, typer.Option("--all", help="Also those that left, died or were lost in the last 24 hours.")
    ] = False,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """List the workers and their running jobs.

    ENDED, FAILED and AVERAGE are from the last heartbeat, up to a third of a lease ago.
    """

    async def work(app: Backstay) -> tuple[list[WorkerRow], list[FormerWorker], list[Job], datetime]:
        rows = await app.workers()
        former = await app.former_workers() if also_former else []
        page = await app.find(status=Status.PROCESSING, limit=FIND_LIMIT_MAX)
        held = _with_what_runs_now(rows, page) if page.next is None else rows
        return held, former, list(page), to_datetime(app.clock.now())

    rows, former, jobs, now = app_loader.run(url, app, work)
    if as_json:
        found = [core_workers.document(row, now) for row in rows]
        found += [core_workers.document(each.row, now, each.left_at) for each in former]
        output.emit_json({"items": found})
        return
    if rows:
        output.emit_table(_columns(now), rows)
        _emit_blocked(rows, now)
        _emit_jobs(rows, jobs, now)
    else:
        output.say('no workers are registered: start one with "backstay worker --app …"')
    if former:
        print()
        output.emit_table(_former_columns(now), former)
    elif also_former:
        output.say("no worker has left in the last 24 hours")


def _with_what_runs_now(rows: list[WorkerRow], jobs: list[Job]) -> list[WorkerRow]:
    """Add what runs now: a heartbeat is up to a third of a lease old."""
    held: dict[str | None, list[str]] = {}
    for job in jobs:
        held.setdefault(job.worker_id, []).append(job.job_id)
    return [msgspec.structs.replace(row, running=tuple(held.get(row.worker_id, ()))) for row in rows]


def _emit_jobs(rows: list[WorkerRow], jobs: list[Job], now: datetime) -> None:
    known = {row.worker_id for row in rows}
    running = sorted((job for job in jobs if job.worker_id in known), key=lambda job: (job.worker_id, job.job_id))
    if not running:
        return
    print()
    output.emit_table(_job_columns(now), running[:_JOBS_SHOWN])
    if len(running) > _JOBS_SHOWN:
        output.say(f'{count(len(running) - _JOBS_SHOWN, "more running job")}: see "backstay list --status processing"')


def _columns(now: datetime) -> list[Column[WorkerRow]]:
    return [
        Column("WORKER", lambda row: row.worker_id, wrap=True),  # host, pid and a random part
        Column("STATE", lambda row: _state(row, now), style=lambda row: _style(row, now)),
        Column("HEARTBEAT", lambda row: away(to_datetime(row.heartbeat_at), now), right=True),
        Column("RUNNING", lambda row: f"{len(row.running)}/{row.concurrency}", right=True),
        Column("ENDED", lambda row: f"{row.ended:,}", right=True),
        Column("FAILED", lambda row: f"{row.failed:,}", right=True),
        Column("AVERAGE", _average_of, right=True),
        Column("UP", lambda row: _up(row, now), right=True, wide=True),
        Column("VERSION", lambda row: row.version, wide=True),
        Column("QUEUES", lambda row: ", ".join(row.queues), wrap=True, wide=True),
        Column("TYPES", lambda row: ", ".join(row.job_types), cut=True, wide=True),
    ]


def _former_columns(now: datetime) -> list[Column[FormerWorker]]:
    return [
        Column("LEFT", lambda each: away(to_datetime(each.left_at), now), right=True),
        Column("WORKER", lambda each: each.row.worker_id, wrap=True),
        Column("ENDED", lambda each: f"{each.row.ended:,}", right=True),
        Column("FAILED", lambda each: f"{each.row.failed:,}", right=True),
        Column("AVERAGE", lambda each: _average_of(each.row), right=True),
        Column("VERSION", lambda each: each.row.version, wide=True),
        Column("QUEUES", lambda each: ", ".join(each.row.queues), wrap=True, wide=True),
    ]


def _average_of(row: WorkerRow) -> str:
    return span(row.busy_micros / row.ended / 1e6) if row.ended else ""


def _job_columns(now: datetime) -> list[Column[Job]]:
    return [
        Column("WORKER", lambda job: job.worker_id or "", wrap=True),
        Column("JOB", lambda job: job.job_id, is_id=True),
        Column("TYPE", lambda job: job.job_type, cut=True),
        Column("DETAILS", lambda job: output.note(job, now), cut=True, style=lambda job: STATUS_STYLES[job.status]),
    ]


def _up(row: WorkerRow, now: datetime) -> str:
    return span(max(0.0, (now - to_datetime(row.started_at)).total_seconds()))


def _state(row: WorkerRow, now: datetime) -> str:
    state = state_of(row, to_instant(now))
    return f"{len(row.stuck)} stuck" if state == "stuck" else state


def _emit_blocked(rows: list[WorkerRow], now: datetime) -> None:
    for row in rows:
        if state_of(row, to_instant(now)) == "blocked":
            output.say(f"the event loop of {row.worker_id} has been {core_workers.blocked_for(row, to_instant(now))}")


def _style(row: WorkerRow, now: datetime) -> str:
    return {"idle": "", "working": "green", "blocked": "red"}.get(_state(row, now), "yellow")

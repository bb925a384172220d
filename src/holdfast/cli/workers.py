"""holdfast workers: who works, on what, how it goes, and when each was last heard of."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast import worker_json
from holdfast.app import Holdfast
from holdfast.cli import apps, notes, output
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.output import STATUS_STYLES, Column
from holdfast.cli.text import away, count, span
from holdfast.clock import to_datetime, to_instant
from holdfast.job import Job
from holdfast.lifecycle import Status
from holdfast.limits import FIND_LIMIT_MAX
from holdfast.store.types import WorkerRow
from holdfast.worker_state import state_of

_JOBS_SHOWN = 20  # of all workers together; "list --worker ID" has the others


def workers(as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """List the workers, what they run and how they do.

    ENDED, FAILED and AVERAGE are what a worker said with its last heartbeat, up to a third of a lease ago.
    """

    async def work(app: Holdfast) -> tuple[list[WorkerRow], list[Job], datetime]:
        rows = await app.workers()
        page = await app.find(status=Status.PROCESSING, limit=FIND_LIMIT_MAX)
        held = _with_what_runs_now(rows, page) if page.next is None else rows
        return held, list(page), to_datetime(app.clock.now())

    rows, jobs, now = apps.run(url, app, work)
    if as_json:
        output.emit_json({"items": [worker_json.document(row, now) for row in rows]})
    elif rows:
        output.emit_table(_columns(now), rows)
        _emit_jobs(rows, jobs, now)
    else:
        output.say('no worker is registered: start one with "holdfast worker --app …"')


def _with_what_runs_now(rows: list[WorkerRow], jobs: list[Job]) -> list[WorkerRow]:
    """A heartbeat says what ran when it was sent, up to a third of a lease ago."""
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
        output.say(f'{count(len(running) - _JOBS_SHOWN, "more job")}: see "holdfast list --status processing"')


def _columns(now: datetime) -> list[Column[WorkerRow]]:
    return [
        Column("WORKER", lambda row: row.worker_id, wrap=True),  # host, pid and a random part
        Column("STATE", lambda row: _state(row, now), style=lambda row: _style(row, now)),
        Column("HEARTBEAT", lambda row: away(to_datetime(row.heartbeat_at), now), right=True),
        Column("RUNS", lambda row: f"{len(row.running)}/{row.concurrency}", right=True),
        Column("ENDED", lambda row: f"{row.ended:,}", right=True),
        Column("FAILED", lambda row: f"{row.failed:,}", right=True),
        Column("AVERAGE", lambda row: span(row.busy_micros / row.ended / 1e6) if row.ended else "", right=True),
        Column("UP", lambda row: _up(row, now), right=True, wide=True),
        Column("RELEASE", lambda row: row.version, wide=True),
        Column("QUEUES", lambda row: ", ".join(row.queues), wrap=True, wide=True),
        Column("TYPES", lambda row: ", ".join(row.job_types), cut=True, wide=True),
    ]


def _job_columns(now: datetime) -> list[Column[Job]]:
    return [
        Column("WORKER", lambda job: job.worker_id or "", wrap=True),
        Column("JOB", lambda job: job.job_id, is_id=True),
        Column("TYPE", lambda job: job.job_type, cut=True),
        Column("AT", lambda job: notes.note(job, now), cut=True, style=lambda job: STATUS_STYLES[job.status]),
    ]


def _up(row: WorkerRow, now: datetime) -> str:
    return span(max(0.0, (now - to_datetime(row.started_at)).total_seconds()))


def _state(row: WorkerRow, now: datetime) -> str:
    state = state_of(row, to_instant(now))
    return f"{len(row.stuck)} stuck" if state == "stuck" else state


def _style(row: WorkerRow, now: datetime) -> str:
    return {"idle": "", "working": "green"}.get(_state(row, now), "yellow")

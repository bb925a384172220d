"""holdfast workers: who works, on what, and when each was last heard of."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.app import Holdfast
from holdfast.cli import apps, output
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.cli.output import Column
from holdfast.cli.text import away
from holdfast.clock import to_datetime
from holdfast.lifecycle import Status
from holdfast.limits import FIND_LIMIT_MAX, LEASE_SECONDS
from holdfast.store.types import WorkerRow


def workers(as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """List the workers and the age of their heartbeats."""

    async def work(app: Holdfast) -> tuple[list[WorkerRow], datetime]:
        rows = await app.workers()
        return await _with_what_runs_now(app, rows), to_datetime(app.clock.now())

    rows, now = apps.run(url, app, work)
    if as_json:
        output.emit_json({"items": [_document(row) for row in rows]})
    elif rows:
        output.emit_table(_columns(now), rows)
    else:
        output.say('no worker is registered: start one with "holdfast worker --app …"')


async def _with_what_runs_now(app: Holdfast, rows: list[WorkerRow]) -> list[WorkerRow]:
    """A heartbeat says what ran when it was sent, up to a third of a lease ago."""
    page = await app.find(status=Status.PROCESSING, limit=FIND_LIMIT_MAX)
    if page.next is not None:
        return rows
    held: dict[str | None, list[str]] = {}
    for job in page:
        held.setdefault(job.worker_id, []).append(job.job_id)
    return [msgspec.structs.replace(row, running=tuple(held.get(row.worker_id, ()))) for row in rows]


def _columns(now: datetime) -> list[Column[WorkerRow]]:
    return [
        Column("WORKER", lambda row: row.worker_id),
        Column("STATE", lambda row: _state(row, now), style=lambda row: _style(row, now)),
        Column("HEARTBEAT", lambda row: away(to_datetime(row.heartbeat_at), now), right=True),
        Column("RUNS", lambda row: f"{len(row.running)}/{row.concurrency}", right=True),
        Column("UP", lambda row: away(to_datetime(row.started_at), now), right=True, wide=True),
        Column("RELEASE", lambda row: row.version, wide=True),
        Column("QUEUES", lambda row: ", ".join(row.queues), cut=True),
        Column("TYPES", lambda row: ", ".join(row.job_types), cut=True, wide=True),
    ]


def _state(row: WorkerRow, now: datetime) -> str:
    if (now - to_datetime(row.heartbeat_at)).total_seconds() > LEASE_SECONDS:
        return "silent"
    if row.stuck:
        return f"{len(row.stuck)} stuck"
    return "stopping" if row.stopping else "working" if row.running else "idle"


def _style(row: WorkerRow, now: datetime) -> str:
    return {"idle": "", "working": "green"}.get(_state(row, now), "yellow")


def _document(row: WorkerRow) -> dict[str, object]:
    document = msgspec.structs.asdict(row)
    del document["process_key"]  # of no meaning outside its machine
    document["started_at"] = to_datetime(row.started_at)
    document["heartbeat_at"] = to_datetime(row.heartbeat_at)
    return document

"""Who works: heartbeats, what they run, how they did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fastapi import Depends, Request, Response

from holdfast import worker_state
from holdfast.app import Holdfast
from holdfast.clock import to_datetime, to_instant
from holdfast.dashboard import frame
from holdfast.job import Job
from holdfast.lifecycle import Status
from holdfast.pace import Pace, last_day
from holdfast.reading import Page
from holdfast.server import crew
from holdfast.server.guarding import needs
from holdfast.server.principals import Principal
from holdfast.store.types import WorkerRow

RUNNING_SHOWN = 10  # of one worker; the others are a click away
RUNNING_READ = 200  # of all workers: records are large. Beyond, a few are read of each
ASKED_MAX = 50  # workers whose jobs are read by themselves

router = frame.pages()


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker, as the page shows it."""

    row: WorkerRow
    heartbeat_at: datetime
    started_at: datetime
    state: str
    shape: str
    pace: Pace | None  # of the last day; None where it also serves queues that one does not see

    @property
    def is_silent(self) -> bool:
        return self.state == "silent"


async def seen_by(app: Holdfast, principal: Principal, now: datetime) -> list[Seen]:
    """Those that serve a queue which the key sees, with what belongs to its queues."""
    return [_seen(each.row, each.is_whole, now) for each in await crew.seen(app, principal)]


def _seen(row: WorkerRow, is_whole: bool, now: datetime) -> Seen:
    heartbeat_at = to_datetime(row.heartbeat_at)
    match worker_state.state_of(row, to_instant(now)):
        case "silent":
            state, shape = "silent", "bad"
        case "stuck":
            state, shape = f"{len(row.stuck)} stuck", "warn"
        case "stopping":
            state, shape = "stopping", "paused"
        case "working" | "idle":  # what it runs is said beside it, as it is now: a heartbeat is older
            state, shape = "alive", "ok"
    pace = last_day(row, to_instant(now)) if is_whole else None
    return Seen(row, heartbeat_at, to_datetime(row.started_at), state, shape, pace)


@router.get("/workers", dependencies=[Depends(needs("read"))])
async def workers(request: Request) -> Response:
    app, principal = frame.app_of(request), frame.reader_of(request)
    seen = await seen_by(app, principal, frame.now_of(request))
    jobs = await app.find(status=Status.PROCESSING, limit=RUNNING_READ)
    is_all = jobs.next is None
    if not is_all:
        jobs = await _of_each(app, seen)
    return frame.render(
        request,
        "workers.html",
        live="all",
        workers=sorted(seen, key=lambda each: (each.is_silent, each.row.worker_id)),
        running=_by_worker(jobs, principal),
        is_all=is_all,
        shown=RUNNING_SHOWN,
    )


async def _of_each(app: Holdfast, workers: Sequence[Seen]) -> Page:
    """One more than is shown of each worker, so that "more than" can be said."""
    jobs = Page()
    for each in [each for each in workers if not each.is_silent][:ASKED_MAX]:
        jobs += await app.find(status=Status.PROCESSING, worker=each.row.worker_id, limit=RUNNING_SHOWN + 1)
    return jobs


def _by_worker(jobs: Sequence[Job], principal: Principal) -> dict[str | None, list[Job]]:
    """What runs now: a heartbeat says what ran when it was sent, up to a third of a lease ago."""
    held: dict[str | None, list[Job]] = {}
    for job in jobs:
        if principal.sees(job.queue):
            held.setdefault(job.worker_id, []).append(job)
    return held

"""The workers page: heartbeats, running jobs and recent figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fastapi import Depends, Request, Response

from backstay.app import Backstay, Page
from backstay.clock import to_datetime, to_instant
from backstay.core import workers as core_workers
from backstay.core.records import WorkerRow
from backstay.core.states import Status
from backstay.core.workers import Pace, last_day
from backstay.dashboard import page
from backstay.job import Job
from backstay.server import visibility
from backstay.server.auth import Principal, needs

RUNNING_SHOWN = 10  # per worker; the others are one click away
RUNNING_READ = 200  # for all workers, since records are large; beyond this, a few are read per worker
ASKED_MAX = 50  # workers whose jobs are read one worker at a time

router = page.pages()


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker as the page shows it."""

    row: WorkerRow
    heartbeat_at: datetime
    started_at: datetime
    state: str
    shape: str
    pace: Pace | None  # of the last day; None if it also serves queues that the key cannot see

    @property
    def is_silent(self) -> bool:
        return self.state == "silent"


async def seen_by(app: Backstay, principal: Principal, now: datetime) -> list[Seen]:
    """The workers that serve a queue the key can see, limited to what concerns those queues."""
    return [_seen(each.row, each.is_whole, now) for each in await visibility.seen(app, principal)]


def _seen(row: WorkerRow, is_whole: bool, now: datetime) -> Seen:
    heartbeat_at = to_datetime(row.heartbeat_at)
    match core_workers.state_of(row, to_instant(now)):
        case "silent":
            state, shape = "silent", "bad"
        case "stuck":
            state, shape = f"{len(row.stuck)} stuck", "warn"
        case "stopping":
            state, shape = "stopping", "paused"
        case "working" | "idle":  # the page shows what it runs now: the heartbeat is older
            state, shape = "alive", "ok"
    pace = last_day(row, to_instant(now)) if is_whole else None
    return Seen(row, heartbeat_at, to_datetime(row.started_at), state, shape, pace)


@router.get("/workers", dependencies=[Depends(needs("read"))])
async def workers(request: Request) -> Response:
    app, principal = page.app_of(request), page.reader_of(request)
    seen = await seen_by(app, principal, page.now_of(request))
    jobs = await app.find(status=Status.PROCESSING, limit=RUNNING_READ)
    is_all = jobs.next is None
    if not is_all:
        jobs = await _of_each(app, seen)
    return page.render(
        request,
        "workers.html",
        live="all",
        workers=sorted(seen, key=lambda each: (each.is_silent, each.row.worker_id)),
        running=_by_worker(jobs, principal),
        is_all=is_all,
        shown=RUNNING_SHOWN,
    )


async def _of_each(app: Backstay, workers: Sequence[Seen]) -> Page:
    """One more job per worker than is shown, so that the page can say "more than"."""
    jobs = Page()
    for each in [each for each in workers if not each.is_silent][:ASKED_MAX]:
        jobs += await app.find(status=Status.PROCESSING, worker=each.row.worker_id, limit=RUNNING_SHOWN + 1)
    return jobs


def _by_worker(jobs: Sequence[Job], principal: Principal) -> dict[str | None, list[Job]]:
    """What runs now: a heartbeat may be up to a third of a lease old."""
    held: dict[str | None, list[Job]] = {}
    for job in jobs:
        if principal.sees(job.queue):
            held.setdefault(job.worker_id, []).append(job)
    return held

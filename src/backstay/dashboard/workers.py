"""The workers page: heartbeats, running jobs and recent figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import get_args

from fastapi import Depends, Request, Response

from backstay.app import Backstay, Page
from backstay.clock import to_datetime, to_instant
from backstay.core import workers as core_workers
from backstay.core.records import WorkerRow
from backstay.core.states import Status
from backstay.core.workers import Pace, State, last_day
from backstay.dashboard import page
from backstay.job import Job
from backstay.limits import LIST_LIMIT
from backstay.server import visibility, worker_summary
from backstay.server.auth import Principal, needs

RUNNING_SHOWN = 10  # per worker; the others are one click away
RUNNING_READ = 200  # for all workers, since records are large; beyond this, a few are read per worker
FORMER_SHOWN = 50  # workers that left in the last day
ASKED_MAX = 50  # workers whose jobs are read one worker at a time
SHAPES: dict[State, str] = {"silent": "bad", "blocked": "bad", "stuck": "warn", "stopping": "paused"}

router = page.pages()


@dataclass(frozen=True, slots=True)
class Seen:
    """A worker as the page shows it."""

    row: WorkerRow
    heartbeat_at: datetime
    started_at: datetime
    state: str
    shape: str
    blocked: str  # for how long, by which handler and where; empty if its event loop runs
    pace: Pace | None  # of the last day; None if it also serves queues that the key cannot see

    @property
    def is_silent(self) -> bool:
        return self.state == "silent"


async def seen_by(app: Backstay, principal: Principal, ids: Sequence[str], now: datetime) -> list[Seen]:
    """These workers, in this order, limited to what concerns the queues that the key can see."""
    place = {worker_id: number for number, worker_id in enumerate(ids)}
    found = await visibility.workers_named(app, principal, ids)
    found.sort(key=lambda each: place[each.row.worker_id])
    return [_seen(each.row, each.is_whole, now) for each in found]


@dataclass(frozen=True, slots=True)
class Former:
    """A worker that has left, as the page shows it."""

    row: WorkerRow
    left_at: datetime
    pace: Pace | None


async def former_by(app: Backstay, principal: Principal, now: datetime) -> list[Former]:
    found = (await visibility.former_seen(app, principal))[:FORMER_SHOWN]
    return [
        Former(each.row, to_datetime(each.left_at or 0), last_day(each.row, to_instant(now)) if each.is_whole else None)
        for each in found
    ]


def _seen(row: WorkerRow, is_whole: bool, now: datetime) -> Seen:
    said = core_workers.state_of(row, to_instant(now))
    state: str = said
    if said == "stuck":
        state = f"{len(row.stuck)} stuck"
    elif said not in SHAPES:  # the page shows what it runs now: the heartbeat is older
        state = "alive"
    pace = last_day(row, to_instant(now)) if is_whole else None
    blocked = core_workers.blocked_for(row, to_instant(now)) if said == "blocked" else ""
    at = to_datetime(row.heartbeat_at), to_datetime(row.started_at)
    return Seen(row, *at, state, SHAPES.get(said, "ok"), blocked, pace)


@router.get("/workers", dependencies=[Depends(needs("read"))])
async def workers(request: Request, state: str = "", start: str = "") -> Response:
    app, principal = page.app_of(request), page.reader_of(request)
    now = page.now_of(request)
    summary = (await worker_summary.summary(request)).seen_by(principal.sees)
    counts = summary.states(to_instant(now))
    chosen = [each for each in get_args(State) if each == state]
    ids = summary.ids(to_instant(now), chosen or core_workers.STATES)
    first = min(int(start), len(ids)) if start.isascii() and start.isdecimal() and len(start) < 10 else 0
    seen = await seen_by(app, principal, ids[first : first + LIST_LIMIT], now)
    jobs = await app.find(status=Status.PROCESSING, limit=RUNNING_READ)
    is_all = jobs.next is None
    if not is_all:
        jobs = await _of_each(app, seen)
    return page.render(
        request,
        "workers.html",
        live="all",
        workers=seen,
        former=await former_by(app, principal, page.now_of(request)),
        running=_by_worker(jobs, principal),
        is_all=is_all,
        shown=RUNNING_SHOWN,
        total=counts.total(),
        states=[(each, counts[each]) for each in core_workers.STATES if counts[each]],
        state="".join(chosen),
        are_many=counts.total() > LIST_LIMIT,
        first=first,
        following=first + LIST_LIMIT if first + LIST_LIMIT < len(ids) else None,
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

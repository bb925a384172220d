"""Dead letters: what failed for good, by type and error, and the way to run it again."""

from __future__ import annotations

from datetime import datetime

import msgspec
from fastapi import Depends, Request, Response

from holdfast import limits
from holdfast.app import Holdfast
from holdfast.clock import to_datetime
from holdfast.dashboard import bulk, forms, frame
from holdfast.dashboard.bulk import Action
from holdfast.editing import died_of
from holdfast.errors import InvalidOption
from holdfast.finding import FindOptions
from holdfast.job import Job
from holdfast.lifecycle import Status
from holdfast.server import searching
from holdfast.server.changes import audited
from holdfast.server.guarding import App, Who, needs
from holdfast.server.principals import Principal
from holdfast.store.types import DeadGroup
from holdfast.words import count

GROUPS_MAX = 100
LOOKED_AT = 1_000  # of the newest dead letters, where they have to be read one by one
EXAMPLES_MAX = 50
REST = 10  # times as long as a count took, it is not made again

router = frame.pages()


class Group(msgspec.Struct, frozen=True):
    job_type: str
    error_type: str
    count: int
    job_id: str  # of the newest
    message: str
    last_at: datetime
    first_at: datetime | None = None  # where all of them were looked at
    is_all: bool = True


class Letters:
    """The groups of a store, counted again at most for a tenth of the time: it takes the longer the more there are."""

    def __init__(self, app: Holdfast) -> None:
        self._app = app
        self._last: list[Group] = []
        self._rests_until = 0.0  # seconds

    async def groups(self) -> list[Group]:
        began = self._app.clock.monotonic()
        if began < self._rests_until:
            return self._last
        self._last = [_stored(each) for each in await self._app.dead(GROUPS_MAX)]
        ended = self._app.clock.monotonic()
        self._rests_until = ended + REST * (ended - began)
        return self._last

    def changed(self) -> None:
        """By us: whoever did it should see it at once."""
        self._rests_until = 0.0


def _stored(group: DeadGroup) -> Group:
    return Group(
        group.job_type,
        group.error_type,
        group.count,
        group.newest_job_id,
        group.newest_error,
        to_datetime(group.newest_at),
    )


@router.get("/dead", dependencies=[Depends(needs("read"))])
async def groups(request: Request, app: App, who: Who) -> Response:
    found = await _groups(request, app, who)
    return frame.render(
        request,
        "dead.html",
        live="all",
        groups=found,
        total=sum(each.count for each in found),
        partly=any(not each.is_all for each in found),
        looked_at=LOOKED_AT,
    )


async def _groups(request: Request, app: Holdfast, who: Principal) -> list[Group]:
    """Counted by the store; where a key sees a part of the queues, from the newest that it sees."""
    if who.sees_all:
        return await frame.kept(request, Letters).groups()
    jobs, is_all = await _newest(app, who, {})
    return _grouped(jobs, is_all)[:GROUPS_MAX]


async def _newest(app: Holdfast, who: Principal, options: FindOptions) -> tuple[list[Job], bool]:
    """Dead letters, newest first, and whether these are all."""
    found: list[Job] = []
    asked: FindOptions = {**options, "status": Status.FAILED, "limit": limits.BULK_STEP}
    for _ in range(LOOKED_AT // limits.BULK_STEP):
        page = await searching.found(app, who, **asked)
        found += page
        if page.next is None:
            return found, True
        asked = {**asked, "after": page.next}
    return found, False


def _grouped(jobs: list[Job], is_all: bool) -> list[Group]:
    alike: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        alike.setdefault((job.job_type, died_of(job.record)), []).append(job)
    found = [_group(key, members, is_all) for key, members in alike.items()]
    return sorted(found, key=lambda each: -each.count)


def _group(key: tuple[str, str], jobs: list[Job], is_all: bool) -> Group:
    ended = [job.completed_at or job.updated_at for job in jobs]
    newest = max(range(len(jobs)), key=ended.__getitem__)
    return Group(
        job_type=key[0],
        error_type=key[1],
        count=len(jobs),
        job_id=jobs[newest].job_id,
        message=jobs[newest].last_error or "",
        last_at=ended[newest],
        first_at=min(ended),
        is_all=is_all,
    )


@router.get("/dead/group", dependencies=[Depends(needs("read"))])
async def group(request: Request, app: App, who: Who) -> Response:
    """Those that died of one thing."""
    job_type, error_type = (request.query_params.get(name, "") for name in ("type", "error"))
    looked, is_all = await _newest(app, who, {"job_type": job_type} if job_type else {})
    jobs = [job for job in looked if died_of(job.record) == error_type]
    return frame.render(
        request,
        "dead_group.html",
        live="all",
        job_type=job_type,
        error_type=error_type,
        group=_group((job_type, error_type), jobs, is_all) if jobs else None,
        jobs=jobs[:EXAMPLES_MAX],
        looked_at=LOOKED_AT,
        most=limits.BULK_MAX,
    )


@router.post("/dead/retry", dependencies=[Depends(needs("admin"))])
async def retry(request: Request, app: App, who: Who) -> Response:
    """All of a group, in pages; of a key that sees a part of the queues, those that it sees."""
    form = await forms.read(request)
    job_type, error_type = form.text("type"), form.text("error")
    if job_type is None or error_type is None:
        raise InvalidOption("name the type and the error of the dead letters that should run again")
    async with audited(app, who, request, "dead.retry", f"{job_type} {error_type}") as entry:
        if who.sees_all:
            retried, refused = await app.retry_dead(job_type=job_type, error_type=error_type, by=who.name), 0
        else:
            looked, _ = await _newest(app, who, {"job_type": job_type})
            chosen = [job.record for job in looked if died_of(job.record) == error_type]
            outcome = await bulk.change(app, Action.RETRY, chosen, by=who.name, reason=None)
            retried, refused = len(outcome.done), len(outcome.refused)
        entry.after = {"retried": retried}
        frame.kept(request, Letters).changed()
    said = f"{count(retried, 'dead letter')} {'was' if retried == 1 else 'were'} sent again."
    left = f" {count(refused, 'job')} could not be." if refused else ""
    return frame.redirect_to(request, forms.back(request, form, "/dead"), said + left, kind="ok" if retried else "bad")

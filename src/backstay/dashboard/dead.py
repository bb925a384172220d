"""The dead letters page: jobs that failed permanently, grouped by type and error, and retries."""

from __future__ import annotations

from datetime import datetime

import msgspec
from fastapi import Depends, Request, Response

from backstay import limits
from backstay.app import Backstay
from backstay.clock import to_datetime
from backstay.core.checks import count
from backstay.core.records import DeadGroup
from backstay.core.states import Status
from backstay.dashboard import page
from backstay.errors import InvalidOption
from backstay.job import Job
from backstay.ops.jobs import died_of
from backstay.options import FindOptions
from backstay.server import visibility
from backstay.server.auth import App, By, Principal, Who, needs

GROUPS_MAX = 100
LOOKED_AT = 1_000  # newest dead letters read where they have to be read one by one
EXAMPLES_MAX = 50
REST = 10  # a count is not repeated for this many times as long as it took

router = page.pages()


class Group(msgspec.Struct, frozen=True):
    job_type: str
    error_type: str
    count: int
    job_id: str  # of the newest
    message: str
    last_at: datetime
    first_at: datetime | None = None  # None: not all of them were read
    is_all: bool = True


class Letters:
    """The groups of a store. Counting takes longer the more there are, so it may use at most a tenth of the time."""

    def __init__(self, app: Backstay) -> None:
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
        """After a change from here: the user should see it at once."""
        self._rests_until = 0.0


def _stored(group: DeadGroup) -> Group:
    return Group(
        group.job_type,
        group.error_type,
        group.count,
        group.newest_job_id,
        page.without_type(group.newest_error, group.error_type),
        to_datetime(group.newest_at),
    )


@router.get("/dead", dependencies=[Depends(needs("read"))])
async def groups(request: Request, app: App, who: Who) -> Response:
    found = await _groups(request, app, who)
    return page.render(
        request,
        "dead.html",
        live="all",
        groups=found,
        total=sum(each.count for each in found),
        partly=any(not each.is_all for each in found),
        looked_at=LOOKED_AT,
    )


async def _groups(request: Request, app: Backstay, who: Principal) -> list[Group]:
    """Counted by the store; for a key limited to some queues, grouped from the newest jobs it can see."""
    if who.sees_all:
        return await page.shared(request, Letters).groups()
    jobs, is_all = await _newest(app, who, {})
    return _grouped(jobs, is_all)[:GROUPS_MAX]


async def _newest(app: Backstay, who: Principal, options: FindOptions) -> tuple[list[Job], bool]:
    """Dead letters, newest first, and whether these are all of them."""
    found: list[Job] = []
    asked: FindOptions = {**options, "status": Status.FAILED, "limit": limits.BULK_STEP}
    for _ in range(LOOKED_AT // limits.BULK_STEP):
        page = await visibility.found(app, who, **asked)
        found += await visibility.without_foreign(app, who, page)
        if page.next is None:
            return found, True
        asked = {**asked, "after": page.next}
    return found, False


def _grouped(jobs: list[Job], is_all: bool) -> list[Group]:
    alike: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        alike.setdefault((job.job_type, died_of(job.row)), []).append(job)
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
        message=page.without_type(jobs[newest].last_error or "", key[1]),
        last_at=ended[newest],
        first_at=min(ended),
        is_all=is_all,
    )


@router.get("/dead/group", dependencies=[Depends(needs("read"))])
async def group(request: Request, app: App, who: Who) -> Response:
    """The dead letters of one type and error."""
    job_type, error_type = (request.query_params.get(name, "") for name in ("type", "error"))
    looked, is_all = await _newest(app, who, {"job_type": job_type} if job_type else {})
    jobs = [job for job in looked if died_of(job.row) == error_type]
    return page.render(
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
async def retry(request: Request, app: App, by: By) -> Response:
    """Retry a whole group; for a key limited to some queues, the jobs it can see."""
    form = await page.read(request)
    job_type, error_type = form.text("type"), form.text("error")
    if job_type is None or error_type is None:
        raise InvalidOption("specify the type and the error of the dead letters to retry")
    forget_steps = bool(form.get("forget_steps"))
    retried = await app.retry_dead(job_type=job_type, error_type=error_type, forget_steps=forget_steps, by=by)
    page.shared(request, Letters).changed()
    notice = f"{count(retried, 'dead letter')} retried."
    return page.redirect_to(request, page.back(request, form, "/dead"), notice, kind="ok" if retried else "bad")

"""Subjects: all jobs about one thing, the latest of each type marked, and what the picked one has brought."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from fastapi import Depends, Request, Response

from holdfast.app import Holdfast
from holdfast.dashboard import frame, shown, stretch
from holdfast.errors import JobNotFound
from holdfast.finding import FindOptions
from holdfast.job import Job
from holdfast.lifecycle import Status
from holdfast.reading import Page
from holdfast.server import searching
from holdfast.server.guarding import App, Who, needs, visible
from holdfast.server.principals import Principal

PAGE = 30
WANTED = 60  # subjects on a page, about
PART = 100  # jobs of a subject, read at once where its children are left out
PAGES_MAX = 10  # of a store, read for one of ours where nearly all are children

router = frame.pages()


class Recent(msgspec.Struct):
    """A subject that something was done about not long ago."""

    subject: str
    count: int
    last_at: datetime
    job_types: dict[str, None]


@router.get("/subjects", dependencies=[Depends(needs("read"))])
async def page(request: Request, app: App, who: Who) -> Response:
    subject = request.query_params.get("subject", "").strip()
    if not subject:
        return await _listed(request, app, who, request.query_params.get("after") or None)
    return await _of(request, app, who, subject)


async def _listed(request: Request, app: Holdfast, who: Principal, after: str | None) -> Response:
    """Those of a stretch of jobs. What is counted is whole where the stretch is all that there is."""
    looked_at = await stretch.read(app, who, after, lambda jobs: len(_recent(jobs)), WANTED)
    return frame.render(
        request,
        "subjects.html",
        live="all" if after is None else None,
        recent=_recent(looked_at),
        looked_at=looked_at,
        is_all=after is None and looked_at.next is None,
        first=frame.url(request, "/subjects") if after else None,
        next=frame.url(request, "/subjects", after=looked_at.next) if looked_at.next else None,
    )


def _recent(jobs: Sequence[Job]) -> list[Recent]:
    found: dict[str, Recent] = {}
    for job in jobs:
        if job.subject is None:
            continue
        each = found.setdefault(job.subject, Recent(job.subject, 0, job.created_at, {}))
        each.count += 1
        each.job_types[job.job_type] = None
    return list(found.values())


async def _of(request: Request, app: Holdfast, who: Principal, subject: str) -> Response:
    after = request.query_params.get("after") or None
    whole = bool(request.query_params.get("children"))
    jobs = await _jobs(app, who, subject, after, whole)
    latest = await _latest(app, who, subject, jobs, whole)
    picked = await _picked(app, who, request.query_params.get("job"), subject, jobs, latest)
    return frame.render(
        request,
        "subject.html",
        live="all" if after is None else None,
        subject=subject,
        jobs=jobs,
        latest=latest,
        picked=picked,
        result=shown.result_of(picked) if picked is not None and _has_result(picked) else None,
        files=await shown.artifacts(app, picked) if picked is not None and picked.archived_at is None else [],
        after=after,
        following=jobs.next,
        children="1" if whole else None,
    )


async def _jobs(app: Holdfast, who: Principal, subject: str, after: str | None, whole: bool) -> Page:
    """Newest first; children only where they are asked for: a tree of thousands would hide all else."""
    found = Page()
    found.next = after
    for _ in range(PAGES_MAX):
        wanted: FindOptions = {"subject": subject, "limit": PAGE if whole else PART, "after": found.next}
        page = await searching.found(app, who, **wanted)
        found += [job for job in page if _is_top(job, whole)]
        found.next = page.next
        if page.next is None or len(found) >= PAGE:
            break
    return found


async def _latest(app: Holdfast, who: Principal, subject: str, jobs: Page, whole: bool) -> frozenset[str]:
    """Of each type the job that result tables answer with for the subject; of one without rows, the newest."""
    found: list[str] = []
    for job_type in dict.fromkeys(job.job_type for job in jobs):
        named = await app.store.latest(subject, job_type)
        wanted: FindOptions = {"subject": subject, "job_type": job_type, "status": Status.COMPLETED, "limit": PAGE}
        completed = [job.job_id for job in await searching.found(app, who, **wanted) if _is_top(job, whole)]
        found += [named] if named in completed else completed[:1]
    return frozenset(each for each in found if each is not None)


def _is_top(job: Job, whole: bool) -> bool:
    return whole or job.parent_job_id is None


async def _picked(
    app: Holdfast, who: Principal, job_id: str | None, subject: str, jobs: Page, latest: frozenset[str]
) -> Job | None:
    """The one that was clicked; before that the newest with something to see."""
    if job_id:
        job = await visible(app, who, job_id)
        if job.subject != subject:
            raise JobNotFound(f"job {job.job_id} is about something else")
        return job
    return next((job for job in jobs if job.job_id in latest), jobs[0] if jobs else None)


def _has_result(job: Job) -> bool:
    return job.status is Status.COMPLETED and job.archived_at is None

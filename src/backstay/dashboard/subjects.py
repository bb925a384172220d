"""The subject pages: the newest report about one thing, all its jobs, and the selected result.

The latest job of each type is marked. Recent jobs are read in limited portions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec
from fastapi import Depends, Request, Response

from backstay.app import Backstay, Page
from backstay.core.states import Status
from backstay.dashboard import job_content
from backstay.dashboard import page as dashboard_page
from backstay.errors import JobNotFound
from backstay.files.local import StoredFile
from backstay.job import Job
from backstay.limits import MIB
from backstay.options import FindOptions
from backstay.server import visibility
from backstay.server.auth import App, Principal, Who, needs, visible

RECENT_PART = 200  # jobs per read
PARTS_MAX = 3  # reads per request, where few jobs have what the page needs
BYTES_MAX = 8 * MIB  # of payloads and results, approximately


async def read(
    app: Backstay, who: Principal, after: str | None, found: Callable[[Sequence[Job]], int], wanted: int
) -> Page:
    """Read jobs until enough is found among them or the budget is used up; `next` continues from there."""
    jobs = Page()
    jobs.next = after
    size = 0
    for _ in range(PARTS_MAX):
        part = await visibility.found(app, who, limit=RECENT_PART, after=jobs.next)
        jobs += part
        jobs.next = part.next
        size += sum(len(job.row.payload) + len(job.row.result or "") for job in part)
        if part.next is None or size > BYTES_MAX or found(jobs) >= wanted:
            break
    return jobs


PAGE = 30
WANTED = 60  # subjects per page, approximately
PART = 100  # jobs of a subject per read where children are left out
PAGES_MAX = 10  # store pages per page of ours, where nearly all jobs are children

router = dashboard_page.pages()


class Recent(msgspec.Struct):
    """A subject with recent jobs."""

    subject: str
    count: int
    last_at: datetime
    job_types: dict[str, None]


@router.get("/subjects", dependencies=[Depends(needs("read"))])
async def page(request: Request, app: App, who: Who) -> Response:
    subject = request.query_params.get("subject", "").strip()
    if not subject:
        return await _index(request, app, who, request.query_params.get("after") or None)
    return await _of(request, app, who, subject)


async def _index(request: Request, app: Backstay, who: Principal, after: str | None) -> Response:
    """The subjects of a portion of jobs. Counts are complete only if the portion covers all jobs."""
    looked_at = await read(app, who, after, lambda jobs: len(_recent(jobs)), WANTED)
    return dashboard_page.render(
        request,
        "subjects.html",
        live="all" if after is None else None,
        recent=_recent(looked_at),
        looked_at=looked_at,
        is_all=after is None and looked_at.next is None,
        first=dashboard_page.url(request, "/subjects") if after else None,
        next=dashboard_page.url(request, "/subjects", after=looked_at.next) if looked_at.next else None,
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


async def _of(request: Request, app: Backstay, who: Principal, subject: str) -> Response:
    after = request.query_params.get("after") or None
    whole = bool(request.query_params.get("children"))
    jobs = await _jobs(app, who, subject, after, whole)
    latest = await _latest(app, who, subject, jobs, whole)
    picked = await _picked(app, who, request.query_params.get("job"), subject, jobs, latest)
    if picked is not None:
        [picked] = await visibility.without_foreign(app, who, [picked])
    return dashboard_page.render(
        request,
        "subject.html",
        live="all" if after is None else None,
        subject=subject,
        jobs=jobs,
        latest=latest,
        picked=picked,
        report=await _report(app, who, subject) if after is None else None,
        chosen="job" in request.query_params,
        comparable=sum(job.status is Status.COMPLETED and job.parent_job_id is None for job in jobs) > 1,
        result=job_content.result_of(picked) if picked is not None and _has_result(picked) else None,
        files=await job_content.artifacts(app, picked) if picked is not None and picked.archived_at is None else [],
        after=after,
        following=jobs.next,
        children="1" if whole else None,
    )


async def _jobs(app: Backstay, who: Principal, subject: str, after: str | None, whole: bool) -> Page:
    """Newest first, without children unless requested: a tree of thousands would hide everything else."""
    found = Page()
    found.next = after
    for _ in range(PAGES_MAX):
        wanted: FindOptions = {"subject": subject, "limit": PAGE if whole else PART, "after": found.next}
        page = await visibility.found(app, who, **wanted)
        found += [job for job in page if _is_top(job, whole)]
        found.next = page.next
        if page.next is None or len(found) >= PAGE:
            break
    return found


async def _latest(app: Backstay, who: Principal, subject: str, jobs: Page, whole: bool) -> frozenset[str]:
    """For each type, the job whose rows result tables return for the subject; for a type without rows, the newest."""
    found: list[str] = []
    for job_type in dict.fromkeys(job.job_type for job in jobs):
        named = await app.stored_rows.latest(subject, job_type)
        wanted: FindOptions = {"subject": subject, "job_type": job_type, "status": Status.COMPLETED, "limit": PAGE}
        completed = [job.job_id for job in await visibility.found(app, who, **wanted) if _is_top(job, whole)]
        found += [named] if named in completed else completed[:1]
    return frozenset(each for each in found if each is not None)


def _is_top(job: Job, whole: bool) -> bool:
    return whole or job.parent_job_id is None


async def _picked(
    app: Backstay, who: Principal, job_id: str | None, subject: str, jobs: Page, latest: frozenset[str]
) -> Job | None:
    """The job that was clicked; by default the newest with results."""
    if job_id:
        job = await visible(app, who, job_id)
        if job.subject != subject:
            raise JobNotFound(f"job {job.job_id} has a different subject")
        return job
    return next((job for job in jobs if job.job_id in latest), jobs[0] if jobs else None)


class Report(msgspec.Struct, frozen=True):
    """A page that a job has written."""

    job: Job
    file: StoredFile


async def _report(app: Backstay, who: Principal, subject: str) -> Report | None:
    """The page of the job about the subject that completed last of those that wrote one; what is called a report comes
    first."""
    completed = await visibility.found(app, who, subject=subject, status=Status.COMPLETED, limit=RECENT_PART)
    for job in sorted(completed, key=lambda job: job.completed_at or job.created_at, reverse=True):
        if job.archived_at is None and job.artifacts:
            pages = [file for file in await app.artifacts(job.job_id) if job_content.kind_of(file.name)[0] == "page"]
            if pages:
                return Report(job, min(pages, key=lambda file: ("report" not in file.name.lower(), file.name)))
    return None


def _has_result(job: Job) -> bool:
    return job.status is Status.COMPLETED and job.archived_at is None

"""Trees: a root with all that it has brought about, as a picture and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from fastapi import Depends, Request, Response

from holdfast.app import Holdfast
from holdfast.dashboard import family, frame, stretch
from holdfast.errors import JobNotFound
from holdfast.job import Job
from holdfast.server.guarding import App, Who, needs, visible
from holdfast.server.principals import Principal

WANTED = 30  # trees on a page, about

router = frame.pages()


@router.get("/trees", dependencies=[Depends(needs("read"))])
async def listed(request: Request, app: App, who: Who, after: str | None = None) -> Response:
    """The trees that a stretch of jobs belongs to. One with many jobs is met again in the next stretch."""
    looked_at = await stretch.read(app, who, after, lambda jobs: len(_roots(jobs)), WANTED)
    return frame.render(
        request,
        "trees.html",
        live="all" if after is None else None,
        roots=await _read(app, who, looked_at),
        looked_at=looked_at,
        first=frame.url(request, "/trees") if after else None,
        next=frame.url(request, "/trees", after=looked_at.next) if looked_at.next else None,
    )


def _roots(jobs: Sequence[Job]) -> list[str]:
    """Ids, each once, in the order in which their jobs were found."""
    in_trees = (job for job in jobs if job.child_count or job.parent_job_id is not None)
    return list(dict.fromkeys(job.root_job_id or job.job_id for job in in_trees))


async def _read(app: Holdfast, who: Principal, jobs: Sequence[Job]) -> list[Job]:
    wanted, own = _roots(jobs), {job.job_id: job for job in jobs}
    missing = [job_id for job_id in wanted if job_id not in own]
    own |= {each.job_id: Job(each) for each in await app.store.get(missing) if each is not None} if missing else {}
    return [own[each] for each in wanted if each in own and who.sees(own[each].queue)]


@router.get("/trees/{job_id}", dependencies=[Depends(needs("read"))])
async def tree(request: Request, app: App, who: Who, job_id: str) -> Response:
    """The whole tree that a job belongs to, whichever of its jobs is named."""
    job = await visible(app, who, job_id)
    root = job
    if job.root_job_id not in (None, job.job_id):
        # One of a queue that the key does not see, or that is gone: the part below it is shown.
        with suppress(JobNotFound):
            root = await visible(app, who, str(job.root_job_id))
    related = await family.gather(app, who, job)
    return frame.render(
        request,
        "tree.html",
        live=f"tree:{job.job_id}",
        root=root,
        asked=job,
        family=related,
        picture=related.picture(),
        rows=list(related.rows()),
    )

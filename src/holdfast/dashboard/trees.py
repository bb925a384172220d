"""Trees: a root with all that it has brought about, as a picture and as a table."""

from __future__ import annotations

from contextlib import suppress

from fastapi import Depends, Request, Response

from holdfast.app import Holdfast
from holdfast.dashboard import family, frame
from holdfast.errors import JobNotFound
from holdfast.job import Job
from holdfast.server import searching
from holdfast.server.guarding import App, Who, needs, visible
from holdfast.server.principals import Principal

LOOKED_AT = 200  # of the newest jobs, for the trees that they belong to: the whole table is never walked
LISTED_MAX = 50

router = frame.pages()


@router.get("/trees", dependencies=[Depends(needs("read"))])
async def listed(request: Request, app: App, who: Who) -> Response:
    roots = await _recent(app, who)
    return frame.render(request, "trees.html", live="all", roots=roots, looked_at=LOOKED_AT)


async def _recent(app: Holdfast, who: Principal) -> list[Job]:
    page = await searching.found(app, who, limit=LOOKED_AT)
    own = {job.job_id: job for job in page}
    wanted = dict.fromkeys(
        job.root_job_id or job.job_id for job in page if job.child_count or job.parent_job_id is not None
    )
    missing = [job_id for job_id in wanted if job_id not in own]
    own |= {each.job_id: Job(each) for each in await app.store.get(missing) if each is not None} if missing else {}
    return [own[each] for each in wanted if each in own and who.sees(own[each].queue)][:LISTED_MAX]


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

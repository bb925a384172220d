"""Live updates, GET /dashboard/live: a stream of hints that something changed; the page then reloads itself.

A key limited to some queues gets hints for those queues only: not whenever the store signals, but when what it can see
has changed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import Depends, Request, Response

from backstay.app import Backstay
from backstay.core.records import Signal
from backstay.core.states import Status
from backstay.core.stats import span
from backstay.dashboard import page
from backstay.job import Job
from backstay.limits import KEY_LIVE_PAGES_MAX, LIVE_PAGES_MAX
from backstay.server.auth import Principal, needs, visible
from backstay.server.problems import Problem
from backstay.server.watch import EventStream, Watches

SETTLE_SECONDS = 0.25  # at most one hint in this time
CHANGED = b"event: changed\ndata: \n\n"
LOOKED_AT_MAX = 100  # running jobs whose progress is watched for lists, and jobs of a tree

Look = Callable[[], Awaitable[object]]

router = page.pages()


@router.get("/live", dependencies=[Depends(needs("read"))])
async def live(request: Request, topic: str = "all") -> Response:
    principal = page.reader_of(request)
    shared = page.shared(request, watches)
    key, look = await _topic(page.app_of(request), principal, topic, shared)
    leave = shared.place(
        principal.key_id,
        most=LIVE_PAGES_MAX,
        share=KEY_LIVE_PAGES_MAX,
        instead="this page refreshes on a timer instead",
    )
    try:
        before = await look()
    except BaseException:
        leave()
        raise

    async def news(latest: object) -> tuple[bytes, bool]:
        nonlocal before
        changed = latest != before
        before = latest
        return CHANGED if changed else b"", False

    return EventStream(request, principal, shared.on(key, before, look), news, leave)


def watches(app: Backstay) -> Watches:
    return Watches(app, frozenset(Signal), SETTLE_SECONDS)


async def _topic(app: Backstay, principal: Principal, topic: str, shared: Watches) -> tuple[tuple[str, str], Look]:
    """The key of the shared watch, and a function that reads what it watches."""
    kind, _, job_id = topic.partition(":")
    match kind:
        case "all":
            return ("all", " ".join(principal.queues)), lambda: _everything(app, principal, shared.signals)
        case "job":
            job = await visible(app, principal, job_id)
            return ("job", job.job_id), lambda: _of_job(app, job.job_id)
        case "tree":
            job = await visible(app, principal, job_id)
            root = job.root_job_id or job.job_id
            return ("tree", root), lambda: _of_tree(app, root)
        case _:
            raise Problem(422, "invalid-request", "topic must be all, job:<id> or tree:<id>")


async def _everything(app: Backstay, principal: Principal, signals: int = 0) -> object:
    """The latest counters, the running jobs with their progress, and the state of the queues. To those who see every
    queue, each signal of the store is a change as well."""
    counted = await app.counters(*span(app.clock.now(), 2), kinds=not principal.sees_all)
    running = await app.find(status=Status.PROCESSING, limit=LOOKED_AT_MAX)
    return (
        signals if principal.sees_all else 0,
        [counter for counter in counted if principal.sees_all or principal.sees(counter.queue)],
        [_mark(job) for job in running if principal.sees(job.queue)],
        [queue for queue in await app.queue_settings() if principal.sees(queue.name)],
    )


async def _of_job(app: Backstay, job_id: str) -> object:
    job = await app.get(job_id)
    end = await app.output_end(job_id) if job.attempt else None
    return _mark(job), job.row.logs, job.row.metrics, job.row.artifacts, end


async def _of_tree(app: Backstay, root: str) -> object:
    return [_mark(await app.get(root)), *map(_mark, await app.find(root=root, limit=LOOKED_AT_MAX))]


def _mark(job: Job) -> object:
    return job.job_id, job.row.version, job.progress, job.stage

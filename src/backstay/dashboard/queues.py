"""The queues page: depths, and pause, resume and limit."""

from __future__ import annotations

from datetime import timedelta

from fastapi import Depends, Request, Response

from backstay.core.checks import check_name, count
from backstay.core.queues import overview
from backstay.dashboard import page
from backstay.dashboard.counts import Census
from backstay.errors import InvalidOption
from backstay.limits import LIST_LIMIT
from backstay.server import worker_summary
from backstay.server.auth import App, By, Who, check_queue, needs

router = page.pages()


@router.get("/queues", dependencies=[Depends(needs("read"))])
async def queues(request: Request, after: str = "") -> Response:
    principal = page.reader_of(request)
    taken = await page.shared(request, Census).latest()
    app = page.app_of(request)
    serving = (await worker_summary.summary(request)).serving(app.clock.now())
    found = overview(await app.queue_settings(), taken.depths, await app.job_types(), serving)
    seen = [queue for queue in found if queue.name > after and principal.sees(queue.name)]
    return page.render(
        request,
        "queues.html",
        live="all",
        queues=seen[:LIST_LIMIT],
        after=after,
        following=seen[LIST_LIMIT - 1].name if len(seen) > LIST_LIMIT else None,
        counted=taken.standing is not None,
        again_ms=page.again_ms(taken.again_seconds),
    )


@router.post("/queues/{name}/pause", dependencies=[Depends(needs("admin"))])
async def pause(request: Request, app: App, who: Who, by: By, name: str) -> Response:
    form = await page.read(request)
    check_queue(who, check_name(name, "queue"))
    back = page.back(request, form, "/queues")
    try:
        queue = await app.pause_queue(name, until=until(form.text("for")), by=by, reason=form.text("reason"))
    except InvalidOption as error:
        return page.redirect_to(request, back, f"Not paused: {error}.", kind="bad")
    still = f"; {count(queue.processing, 'job')} still running" if queue.processing else ""
    return page.redirect_to(request, back, f"Queue {name} paused{still}.")


@router.post("/queues/{name}/resume", dependencies=[Depends(needs("admin"))])
async def resume(request: Request, app: App, who: Who, by: By, name: str) -> Response:
    form = await page.read(request)
    check_queue(who, check_name(name, "queue"))
    queue = await app.resume_queue(name, by=by)
    notice = f"Queue {name} resumed; {count(queue.pending, 'job')} pending."
    return page.redirect_to(request, page.back(request, form, "/queues"), notice)


@router.post("/queues/{name}/limit", dependencies=[Depends(needs("admin"))])
async def limit(request: Request, app: App, who: Who, by: By, name: str) -> Response:
    form = await page.read(request)
    check_queue(who, check_name(name, "queue"))
    back = page.back(request, form, "/queues")
    try:
        most = whole(form.text("max_pending"))
        await app.limit_queue(name, most, by=by)
    except InvalidOption as error:
        return page.redirect_to(request, back, f"Limit not changed: {error}.", kind="bad")
    limited = "Limit removed" if most is None else f"Limit set to {count(most, 'pending job')}"
    return page.redirect_to(request, back, f"{limited} for queue {name}.")


def until(minutes: str | None) -> timedelta | None:
    """Return how long a pause is to last, from minutes; None: until someone resumes it."""
    found = whole(minutes)
    return None if found is None else timedelta(minutes=found)


def whole(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 12:
        raise InvalidOption(f"{text!r:.40} is not a number of jobs")
    return int(text)

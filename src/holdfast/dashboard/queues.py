"""Queues: what waits in each, and pausing, resuming and limiting one."""

from __future__ import annotations

from typing import Any

from fastapi import Depends, Request, Response

from holdfast import audit_json
from holdfast.checks import check_name
from holdfast.dashboard import forms, frame
from holdfast.dashboard.standing import Census
from holdfast.dashboard.workers import seen_by
from holdfast.errors import InvalidOption
from holdfast.queues import overview
from holdfast.server.changes import audited
from holdfast.server.guarding import check_queue, needs
from holdfast.server.principals import Principal
from holdfast.words import count

router = frame.pages()


@router.get("/queues", dependencies=[Depends(needs("read"))])
async def queues(request: Request) -> Response:
    principal = frame.reader_of(request)
    taken = await frame.kept(request, Census).latest()
    app = frame.app_of(request)
    store = app.store
    workers = await seen_by(app, principal, frame.now_of(request))
    found = overview(
        await store.queues(),
        taken.depths,
        await store.job_types(),
        [each.row for each in workers if not each.is_silent],
    )
    seen = [queue for queue in found if principal.sees(queue.name)]
    return frame.render(
        request,
        "queues.html",
        live="all",
        queues=seen,
        counted=taken.standing is not None,
        again_ms=frame.again_ms(taken.again_seconds),
    )


@router.post("/queues/{name}/pause", dependencies=[Depends(needs("admin"))])
async def pause(request: Request, name: str) -> Response:
    form, who = await forms.read(request), frame.reader_of(request)
    before = await _said_of(request, who, name)
    app = frame.app_of(request)
    async with audited(app, who, request, "queue.pause", name, before) as entry:
        queue = await app.pause_queue(name, by=who.name, reason=form.text("reason"))
        entry.after = audit_json.queue(queue)
    still = f"; {count(queue.processing, 'job')} of it still running" if queue.processing else ""
    said = f"{name} is paused{still}."
    return frame.redirect_to(request, forms.back(request, form, "/queues"), said)


@router.post("/queues/{name}/resume", dependencies=[Depends(needs("admin"))])
async def resume(request: Request, name: str) -> Response:
    form, who = await forms.read(request), frame.reader_of(request)
    before = await _said_of(request, who, name)
    app = frame.app_of(request)
    async with audited(app, who, request, "queue.resume", name, before) as entry:
        queue = await app.resume_queue(name)
        entry.after = audit_json.queue(queue)
    said = f"{name} goes on; {count(queue.pending, 'job')} pending."
    return frame.redirect_to(request, forms.back(request, form, "/queues"), said)


@router.post("/queues/{name}/limit", dependencies=[Depends(needs("admin"))])
async def limit(request: Request, name: str) -> Response:
    form, who = await forms.read(request), frame.reader_of(request)
    before = await _said_of(request, who, name)
    back = forms.back(request, form, "/queues")
    app = frame.app_of(request)
    try:
        most = _whole(form.text("max_pending"))
        async with audited(app, who, request, "queue.limit", name, before) as entry:
            queue = await app.limit_queue(name, most)
            entry.after = audit_json.queue(queue)
    except InvalidOption as error:
        return frame.redirect_to(request, back, f"The limit was not changed: {error}.", kind="bad")
    takes = "takes any number of jobs" if most is None else f"takes no more than {count(most, 'pending job')}"
    return frame.redirect_to(request, back, f"{name} {takes}.")


async def _said_of(request: Request, who: Principal, name: str) -> dict[str, Any]:
    """What was said about a queue that the key may change."""
    check_queue(who, check_name(name, "queue"))
    rows = await frame.app_of(request).store.queues()
    return audit_json.queue(next((row for row in rows if row.name == name), None))


def _whole(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 12:
        raise InvalidOption(f"{text!r:.40} is no number of jobs")
    return int(text)

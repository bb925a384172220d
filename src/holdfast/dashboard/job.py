"""A job: everything that is kept of it, as it goes on, and what can be done about it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable
from datetime import UTC, datetime
from typing import Any

import msgspec
from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from holdfast.app import Holdfast
from holdfast.dashboard import family, forms, frame, shown, timeline, trail
from holdfast.dashboard.forms import Form
from holdfast.errors import InvalidOption
from holdfast.job import Job
from holdfast.lifecycle import ACTIVE, TERMINAL, Status
from holdfast.server import problems
from holdfast.server.changes import audited, check_tree, said_of
from holdfast.server.guarding import App, Who, needs, visible
from holdfast.server.principals import Principal
from holdfast.server.reasons import explained

_ID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_LOOKS_MAX = 3  # at a job that changes while it is looked at; its page follows it anyway

router = frame.pages()


class Possible(msgspec.Struct, frozen=True):
    """What this person may do with the job as it is."""

    cancel: bool
    retry: bool
    rerun: bool
    change: bool  # its priority
    move: bool  # to another time
    resubmit: bool


def possible(job: Job, who: Principal, *, has_form: bool) -> Possible:
    """`has_form`: its type is one that this person can submit."""
    ended = job.status in TERMINAL and job.archived_at is None
    active, changes = job.status in ACTIVE, who.may("submit", "admin")
    return Possible(
        cancel=active and changes,
        retry=ended and changes,
        rerun=ended and who.may("admin") and (job.child_count > 0 or job.parent_job_id is not None),
        change=active and who.may("admin"),
        move=job.status in (Status.PENDING, Status.SCHEDULED) and who.may("admin"),
        resubmit=job.archived_at is None and has_form,
    )


@router.get("/jobs/{job_id}", dependencies=[Depends(needs("read"))])
async def page(request: Request, app: App, who: Who, job_id: str) -> Response:
    job, why = await _seen(app, who, job_id)
    if job.job_id != job_id:
        return RedirectResponse(frame.url(request, f"/jobs/{job.job_id}"), 303)
    related = await family.gather(app, who, job)
    return frame.render(
        request,
        "job.html",
        live=f"job:{job.job_id}",
        job=job,
        why=sentence(why),
        can=possible(job, who, has_form=await _has_form(app, who, job.job_type)),
        payload=await shown.payload_of(app, job) if job.archived_at is None else None,
        result=shown.result_of(job) if job.status is Status.COMPLETED and job.archived_at is None else None,
        files=await shown.artifacts(app, job) if job.archived_at is None else [],
        spans=timeline.spans(job.history, frame.now_of(request)),
        happenings=timeline.happenings(job.history),
        family=related,
        picture=None if related.alone else related.picture(),
        has_log_file=await app.log_bytes(job.job_id, 0, 1) is not None,
    )


async def _seen(app: Holdfast, who: Principal, job_id: str) -> tuple[Job, str]:
    """The job and why it is where it is, of one state: else a page could say that it runs, while its forms are for the
    version that was waiting, and are refused."""
    job = await visible(app, who, job_id)
    for _ in range(_LOOKS_MAX):
        before = job.version
        why = await explained(app, who, job)
        job = await visible(app, who, job_id)
        if job.version == before:
            break
    return job, why


async def _has_form(app: Holdfast, who: Principal, job_type: str) -> bool:
    """Whether the page for submitting would offer the type: it was announced, and for a queue of this person's."""
    known = await app.store.job_types() if who.may("submit") else []
    return any(each.job_type == job_type and who.sees(each.queue) for each in known)


def sentence(text: str) -> list[tuple[str, bool]]:
    """With a beginning and an end; the ids of jobs in it apart from the words, to be links."""
    whole = f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '…')) else '.'}"
    return [(part, bool(_ID.fullmatch(part))) for part in _ID.split(whole) if part]


@router.get("/jobs/{job_id}/log", dependencies=[Depends(needs("read"))])
async def log(request: Request, app: App, who: Who, job_id: str) -> Response:
    """All of it, as text."""
    job = await visible(app, who, job_id)
    first = await app.log_bytes(job.job_id)
    if first is None:
        raise problems.Problem(404, "no-log", "this job has written no log, or it went with its retention")
    return StreamingResponse(_pieces(app, job.job_id, first), media_type="text/plain; charset=utf-8")


async def _pieces(app: Holdfast, job_id: str, piece: bytes | None) -> AsyncIterator[bytes]:
    start = 0
    while piece:
        yield piece
        start += len(piece)
        piece = await app.log_bytes(job_id, start)


@router.get("/jobs/{job_id}/result", dependencies=[Depends(needs("read"))])
async def result(request: Request, app: App, who: Who, job_id: str) -> Response:
    """A large result, as JSON."""
    job = await visible(app, who, job_id)
    value = await asyncio.to_thread(lambda: job.result)  # which reads a file
    return Response(
        msgspec.json.encode(value),
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="{job.job_id}.json"'},
    )


# Changes


@router.post("/jobs/{job_id}/cancel", dependencies=[Depends(needs("submit", "admin"))])
async def cancel(request: Request, app: App, who: Who, job_id: str) -> Response:
    job, form = await _asked(request, app, who, job_id)
    subtree = bool(form.get("subtree"))
    if subtree:
        await check_tree(app, who, job.record)
    # Without a version: whoever cancels a job that waits means it no less when it has begun to run since.
    options = {"subtree": subtree, **_words(form, who)}
    return await _change(request, form, job, "job.cancel", lambda: app.cancel(job.job_id, **options), "Cancelled.")


@router.post("/jobs/{job_id}/retry", dependencies=[Depends(needs("submit", "admin"))])
async def retry(request: Request, app: App, who: Who, job_id: str) -> Response:
    job, form = await _asked(request, app, who, job_id)
    subtree = bool(form.get("subtree"))
    if subtree:
        await check_tree(app, who, job.record)
    options = {"subtree": subtree, **_words(form, who), "expected_version": _version(form)}
    return await _change(request, form, job, "job.retry", lambda: app.retry(job.job_id, **options), "Sent again.")


@router.post("/jobs/{job_id}/rerun", dependencies=[Depends(needs("admin"))])
async def rerun(request: Request, app: App, who: Who, job_id: str) -> Response:
    job, form = await _asked(request, app, who, job_id)
    await check_tree(app, who, (await visible(app, who, job.root_job_id or job.job_id)).record)
    return await _change(
        request,
        form,
        job,
        "job.rerun",
        lambda: app.rerun(job.job_id, **_words(form, who)),
        "It runs again, with all that comes after it.",
    )


@router.post("/jobs/{job_id}/priority", dependencies=[Depends(needs("admin"))])
async def reprioritise(request: Request, app: App, who: Who, job_id: str) -> Response:
    job, form = await _asked(request, app, who, job_id)
    text = form.get("priority", "").strip()
    place: int | str = int(text) if text.isdecimal() and len(text) < 6 else text
    options = {**_words(form, who), "expected_version": _version(form)}
    return await _change(
        request,
        form,
        job,
        "job.patch",
        lambda: app.reprioritise(job.job_id, place, **options),
        f"Its priority is {place} now.",
    )


@router.post("/jobs/{job_id}/time", dependencies=[Depends(needs("admin"))])
async def reschedule(request: Request, app: App, who: Who, job_id: str) -> Response:
    """At another time, or with nothing filled in, now."""
    job, form = await _asked(request, app, who, job_id)
    options = {**_words(form, who), "expected_version": _version(form)}

    async def moved() -> Job:
        return await app.reschedule(job.job_id, run_at=moment_of(form.text("run_at")), **options)

    return await _change(request, form, job, "job.patch", moved, "It has another time now.")


async def _asked(request: Request, app: Holdfast, who: Principal, job_id: str) -> tuple[Job, Form]:
    form = await forms.read(request)
    return await visible(app, who, job_id), form


async def _change(request: Request, form: Form, job: Job, action: str, change: Any, said: str) -> Response:
    here = f"/jobs/{job.job_id}"
    who = frame.principal_of(request)
    assert who is not None  # noqa: S101 - the route has a scope
    try:
        async with audited(frame.app_of(request), who, request, action, job.job_id, said_of(job)) as entry:
            answer: Awaitable[Job] = change()
            entry.after = said_of(await answer)
    except trail.REFUSALS as error:
        return trail.refused(request, form, error, here)
    return frame.redirect_to(request, forms.back(request, form, here), said)


def _words(form: Form, who: Principal) -> dict[str, Any]:
    return {"reason": form.text("reason"), "by": who.name}


def _version(form: Form) -> int | None:
    """The version that the page showed: a job that has changed since is looked at again first."""
    text = form.get("version", "")
    return int(text) if text.isdecimal() and len(text) < 19 else None


def moment_of(text: str | None) -> datetime | None:
    """What the browser's field for a time sends; it is meant as UTC."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        raise InvalidOption(f"run_at={text!r:.60}: write a day and a time, such as 2026-11-16T09:30") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found

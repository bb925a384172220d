"""The job page: everything stored about a job, its timeline, and the actions on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from backstay import codec
from backstay.app import Backstay
from backstay.core.states import ACTIVE, TERMINAL, Event, Status
from backstay.dashboard import job_content, tree
from backstay.dashboard import page as dashboard_page
from backstay.dashboard.page import Form
from backstay.job import HistoryEntry, Job
from backstay.ops.events import StepEntry, says
from backstay.ops.explanation import Explanation, RelatedJob
from backstay.server import problems, worker_summary
from backstay.server.auth import App, By, Principal, Who, needs, visible
from backstay.server.visibility import check_tree, explained, without_foreign

WIDTH = 1_000.0
NARROWEST = 8.0  # minimum width of a state: 200 ms after 5 h of waiting should still be visible

_WORDS = {
    Event.SUBMIT: "Submitted",
    Event.REUSE: "Reused the result of an identical job",
    Event.RELEASE: "No longer waiting",
    Event.DUE: "Became due",
    Event.CLAIM: "Attempt {attempt} started",
    Event.COMPLETE: "Completed",
    Event.RETRY: "Attempt {attempt} failed, will retry",
    Event.EXHAUST: "Attempt {attempt} failed (final attempt)",
    Event.DISCARD: "Discarded by its handler",
    Event.SNOOZE: "Snoozed",
    Event.GIVE_BACK: "Returned to the queue by its worker",
    Event.WAIT_FOR_CHILDREN: "Waiting for its children",
    Event.SLEEP: "Sleeping",
    Event.WAIT_FOR_EVENT: "Waiting for an event",
    Event.RESCUE: "Recovered from a lost worker",
    Event.RESCHEDULE: "Rescheduled",
    Event.REPRIORITISE: "Priority changed",
    Event.UPDATE: "Payload changed",
    Event.REPLACE: "Replaced by a later submit",
    Event.EXPIRE: "Expired: it had not started in time",
    Event.CANCEL: "Cancelled",
    Event.MANUAL_RETRY: "Retried manually",
    Event.SKIP_TICK: "A tick of its schedule was skipped",
}


@dataclass(frozen=True, slots=True)
class Span:
    """A state that the job was in. The last one lasts until now; a final state has no span."""

    status: Status
    attempt: int
    at: datetime
    seconds: float
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Happening:
    version: int
    at: datetime
    after: float | None  # seconds since the previous event
    words: str
    target: Status
    by: str | None
    reason: str | None
    dropped: int  # events before it that are no longer stored


def spans(history: Sequence[HistoryEntry], now: datetime) -> list[Span]:
    """Side by side over the full width, each in proportion to its duration but never too narrow to see."""
    found: list[tuple[HistoryEntry, float]] = []
    for place, entry in enumerate(history):
        follower = history[place + 1] if place + 1 < len(history) else None
        if entry.target in TERMINAL and follower is None:
            break
        until = now if follower is None else follower.at
        seconds = max(0.0, (until - entry.at).total_seconds())
        if found and found[-1][0].target is entry.target and found[-1][0].attempt == entry.attempt:
            found[-1] = (found[-1][0], found[-1][1] + seconds)  # a change of priority is not a new state
        else:
            found.append((entry, seconds))
    widths = _widths([seconds for _, seconds in found])
    x, laid = 0.0, []
    for (entry, seconds), width in zip(found, widths, strict=True):
        laid.append(Span(entry.target, entry.attempt, entry.at, seconds, round(x, 2), round(width, 2)))
        x += width
    return laid


def _widths(lengths: Sequence[float]) -> list[float]:
    narrowest = min(NARROWEST, WIDTH / max(1, len(lengths)))
    spare, total = WIDTH - narrowest * len(lengths), sum(lengths)
    share = spare / total if total else 0.0
    return [narrowest + (length * share if total else spare / len(lengths)) for length in lengths]


def happenings(history: Sequence[HistoryEntry]) -> list[Happening]:
    found: list[Happening] = []
    for place, entry in enumerate(history):
        before = history[place - 1] if place else None
        found.append(
            Happening(
                version=entry.version,
                at=entry.at,
                after=None if before is None else max(0.0, (entry.at - before.at).total_seconds()),
                words=_event_text(entry),
                target=entry.target,
                by=entry.by,
                reason=entry.why,
                dropped=0 if before is None else entry.version - before.version - 1,
            )
        )
    return found


def _event_text(entry: HistoryEntry) -> str:
    if entry.event is Event.RELEASE and entry.target in TERMINAL:
        return "Ended because of a job it was waiting for"
    if entry.event is Event.RESCUE and entry.target is Status.FAILED:
        return "Worker lost (final attempt)"
    return _WORDS[entry.event].format(attempt=entry.attempt)


_READS_MAX = 3  # of a job that changes while it is read; its page updates anyway

router = dashboard_page.pages()


class Recorded(msgspec.Struct, frozen=True):
    """A recorded step as the page shows it."""

    step: StepEntry
    words: str


class Possible(msgspec.Struct, frozen=True):
    """What the user may do with the job in its current state."""

    cancel: bool
    retry: bool
    rerun: bool
    change: bool  # its priority
    move: bool  # to another time
    update: bool  # its payload
    remove: bool
    resubmit: bool


def possible(job: Job, who: Principal, *, has_form: bool) -> Possible:
    """`has_form`: the user can submit this job type."""
    ended = job.status in TERMINAL and job.archived_at is None
    active, changes = job.status in ACTIVE, who.may("submit", "admin")
    return Possible(
        cancel=active and changes,
        retry=ended and changes,
        rerun=ended and who.may("admin") and (job.child_count > 0 or job.parent_job_id is not None),
        change=active and who.may("admin"),
        move=job.status in (Status.PENDING, Status.SCHEDULED) and who.may("admin"),
        update=active and job.status is not Status.PROCESSING and job.content_hash is None and who.may("admin"),
        remove=job.status is not Status.PROCESSING and job.child_count == 0 and who.may("admin"),
        resubmit=job.archived_at is None and has_form,
    )


@router.get("/jobs/{job_id}", dependencies=[Depends(needs("read"))])
async def page(request: Request, app: App, who: Who, job_id: str) -> Response:
    job, why = await _seen(request, app, who, job_id)
    if job.job_id != job_id:
        return RedirectResponse(dashboard_page.url(request, f"/jobs/{job.job_id}"), 303)
    related = await tree.gather(app, who, job)
    [job] = await without_foreign(app, who, [job])
    return dashboard_page.render(
        request,
        "job.html",
        live=f"job:{job.job_id}",
        job=job,
        why=sentence(why),
        can=possible(job, who, has_form=await _has_form(app, who, job.job_type)),
        payload=await job_content.payload_of(app, job) if job.archived_at is None else None,
        result=job_content.result_of(job) if job.status is Status.COMPLETED and job.archived_at is None else None,
        files=await job_content.artifacts(app, job) if job.archived_at is None else [],
        streamed=await job_content.streamed(app, job),
        spans=spans(job.history, dashboard_page.now_of(request)),
        happenings=happenings(job.history),
        steps=[Recorded(each, says(each)) for each in await app.steps(job.job_id)],
        family=related,
        picture=None if related.alone else related.picture(),
        has_log_file=job.attempt > 0 and await app.log_bytes(job.job_id, 0, 1) is not None,
    )


async def _seen(request: Request, app: Backstay, who: Principal, job_id: str) -> tuple[Job, Explanation]:
    """The job and the explanation of its state, read at the same version: otherwise a page could say that the job is
    running while its forms carry the version that was waiting, and are refused."""
    job = await visible(app, who, job_id)
    for _ in range(_READS_MAX):
        before = job.version
        why = await explained(app, who, job, await worker_summary.likely(request, job))
        job = await visible(app, who, job_id)
        if job.version == before:
            break
    return job, why


async def _has_form(app: Backstay, who: Principal, job_type: str) -> bool:
    """Return whether the submit page offers the type: it is registered, for a queue that the user can see."""
    known = await app.job_types() if who.may("submit") else []
    return any(each.job_type == job_type and who.sees(each.queue) for each in known)


def sentence(why: Explanation) -> list[tuple[str, str | None]]:
    """Return the sentence with a capital and a full stop, in parts. Each part has the id of the job that it links to,
    if any."""
    parts = [(str(part), part.job_id if isinstance(part, RelatedJob) else None) for part in why.parts()]
    first, last = parts[0][0], parts[-1][0]
    parts[0] = (first[:1].upper() + first[1:], parts[0][1])
    return parts if last.endswith((".", "…")) else [*parts, (".", None)]


@router.get("/jobs/{job_id}/log", dependencies=[Depends(needs("read"))])
async def log(request: Request, app: App, who: Who, job_id: str) -> Response:
    """The full log, as text."""
    job = await visible(app, who, job_id)
    first = await app.log_bytes(job.job_id)
    if first is None:
        raise problems.Problem(
            404, "no-log", "this job has no log, or its log was removed when its retention period ended"
        )
    return StreamingResponse(_pieces(app, job.job_id, first), media_type="text/plain; charset=utf-8")


async def _pieces(app: Backstay, job_id: str, piece: bytes | None) -> AsyncIterator[bytes]:
    start = 0
    while piece:
        yield piece
        start += len(piece)
        piece = await app.log_bytes(job_id, start)


@router.get("/jobs/{job_id}/result", dependencies=[Depends(needs("read"))])
async def result(request: Request, app: App, who: Who, job_id: str) -> Response:
    """A large result, as JSON."""
    job = await visible(app, who, job_id)
    value = await asyncio.to_thread(lambda: job.result)  # it may read a file
    return Response(
        msgspec.json.encode(value),
        media_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="{job.job_id}.json"'},
    )


# Changes


@router.post("/jobs/{job_id}/cancel", dependencies=[Depends(needs("submit", "admin"))])
async def cancel(request: Request, app: App, who: Who, by: By, job_id: str) -> Response:
    job, form = await _asked(request, app, who, job_id)
    subtree = bool(form.get("subtree"))
    if subtree:
        await check_tree(app, who, job.job_id)
    # Without a version: a request to cancel a waiting job still holds if it has started since.
    change = app.cancel(job.job_id, subtree=subtree, reason=form.text("reason"), by=by)
    return await _change(request, form, job, change, "Job cancelled.")


@router.post("/jobs/{job_id}/retry", dependencies=[Depends(needs("submit", "admin"))])
async def retry(request: Request, app: App, who: Who, by: By, job_id: str) -> Response:
    job, form = await _asked(request, app, who, job_id)
    subtree = bool(form.get("subtree"))
    if subtree:
        await check_tree(app, who, job.job_id)
    change = app.retry(
        job.job_id,
        subtree=subtree,
        forget_steps=bool(form.get("forget_steps")),
        reason=form.text("reason"),
        by=by,
        expected_version=_version(form),
    )
    return await _change(request, form, job, change, "Job retried.")


@router.post("/jobs/{job_id}/rerun", dependencies=[Depends(needs("admin"))])
async def rerun(request: Request, app: App, who: Who, by: By, job_id: str) -> Response:
    job, form = await _asked(request, app, who, job_id)
    await check_tree(app, who, (await visible(app, who, job.root_job_id or job.job_id)).job_id)
    forget_steps = bool(form.get("forget_steps"))
    change = app.rerun(job.job_id, forget_steps=forget_steps, reason=form.text("reason"), by=by)
    return await _change(request, form, job, change, "Rerunning this job and everything after it.")


@router.post("/jobs/{job_id}/priority", dependencies=[Depends(needs("admin"))])
async def reprioritise(request: Request, app: App, who: Who, by: By, job_id: str) -> Response:
    job, form = await _asked(request, app, who, job_id)
    text = form.get("priority", "").strip()
    place: int | str = int(text) if text.isdecimal() and len(text) < 6 else text
    change = app.reprioritise(job.job_id, place, reason=form.text("reason"), by=by, expected_version=_version(form))
    return await _change(request, form, job, change, f"Priority set to {place}.")


@router.post("/jobs/{job_id}/time", dependencies=[Depends(needs("admin"))])
async def reschedule(request: Request, app: App, who: Who, by: By, job_id: str) -> Response:
    """Reschedule to another time; left blank, to now."""
    job, form = await _asked(request, app, who, job_id)

    async def change() -> Job:
        return await app.reschedule(
            job.job_id,
            run_at=dashboard_page.moment_of("run_at", form.text("run_at")),
            reason=form.text("reason"),
            by=by,
            expected_version=_version(form),
        )

    return await _change(request, form, job, change(), "Job rescheduled.")


@router.post("/jobs/{job_id}/payload", dependencies=[Depends(needs("admin"))])
async def update(request: Request, app: App, who: Who, by: By, job_id: str) -> Response:
    job, form = await _asked(request, app, who, job_id)

    async def change() -> Job:
        return await app.update(
            job.job_id,
            codec.from_json((form.text("payload") or "").encode()),
            reason=form.text("reason"),
            by=by,
            expected_version=_version(form),
        )

    return await _change(request, form, job, change(), "Payload changed.")


@router.post("/jobs/{job_id}/remove", dependencies=[Depends(needs("admin"))])
async def remove(request: Request, app: App, who: Who, by: By, job_id: str) -> Response:
    job, form = await _asked(request, app, who, job_id)
    try:
        await app.remove(job.job_id, reason=form.text("reason"), by=by, expected_version=_version(form))
    except dashboard_page.REFUSALS as error:
        return dashboard_page.refused(request, form, error, f"/jobs/{job.job_id}")
    return dashboard_page.redirect_to(request, dashboard_page.url(request, "/jobs"), "Job removed.")


async def _asked(request: Request, app: Backstay, who: Principal, job_id: str) -> tuple[Job, Form]:
    form = await dashboard_page.read(request)
    return await visible(app, who, job_id), form


async def _change(request: Request, form: Form, job: Job, change: Awaitable[Job], notice: str) -> Response:
    here = f"/jobs/{job.job_id}"
    try:
        await change
    except dashboard_page.REFUSALS as error:
        return dashboard_page.refused(request, form, error, here)
    return dashboard_page.redirect_to(request, dashboard_page.back(request, form, here), notice)


def _version(form: Form) -> int | None:
    """Return the version that the page showed. If the job has changed since, the user has to look again first."""
    text = form.get("version", "")
    return int(text) if text.isdecimal() and len(text) < 19 else None

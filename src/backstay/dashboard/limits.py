"""The limits page: job types and keys, what was set for them at run time; pause, resume and limit."""

from __future__ import annotations

from fastapi import Depends, Request, Response

from backstay.app import Backstay
from backstay.core.run_limits import Limit
from backstay.dashboard import page
from backstay.dashboard.queues import until, whole
from backstay.errors import InvalidOption
from backstay.limits import LIST_LIMIT
from backstay.server.auth import App, By, Principal, Who, check_all_queues, check_type, needs

router = page.pages()


@router.get("/limits", dependencies=[Depends(needs("read"))])
async def limits(request: Request, after: str = "") -> Response:
    seen = [
        each for each in await _types(page.app_of(request), page.reader_of(request)) if (each.job_type or "") > after
    ]
    return page.render(
        request,
        "limits.html",
        live="all",
        types=seen[:LIST_LIMIT],
        after=after,
        sees_keys=page.reader_of(request).sees_all,
        keys=await _keys(page.app_of(request), page.reader_of(request)),
        following=seen[LIST_LIMIT - 1].job_type if len(seen) > LIST_LIMIT else None,
    )


async def _keys(app: Backstay, principal: Principal) -> list[Limit]:
    """Return the keys that are limited, if the reader sees all queues: jobs of a key may be in any."""
    return [each for each in await app.limits() if each.key is not None] if principal.sees_all else []


async def _types(app: Backstay, principal: Principal) -> list[Limit]:
    """Return the job types that may be seen, each with what was set for it at run time."""
    known = sorted({each.job_type for each in await app.job_types() if principal.sees(each.queue)})
    found = {each.job_type: each for each in await app.limits() if each.job_type is not None}
    return [found.get(name) or Limit(job_type=name) for name in known]


@router.post("/types/{job_type}/pause", dependencies=[Depends(needs("admin"))])
async def pause_type(request: Request, app: App, who: Who, by: By, job_type: str) -> Response:
    form = await page.read(request)
    await check_type(app, who, job_type)
    back = page.back(request, form, "/limits")
    try:
        await app.pause_type(job_type, until=until(form.text("for")), by=by, reason=form.text("reason"))
    except InvalidOption as error:
        return page.redirect_to(request, back, f"Not paused: {error}.", kind="bad")
    return page.redirect_to(request, back, f"Type {job_type} paused.")


@router.post("/types/{job_type}/resume", dependencies=[Depends(needs("admin"))])
async def resume_type(request: Request, app: App, who: Who, by: By, job_type: str) -> Response:
    form = await page.read(request)
    await check_type(app, who, job_type)
    await app.resume_type(job_type, by=by)
    return page.redirect_to(request, page.back(request, form, "/limits"), f"Type {job_type} resumed.")


@router.post("/types/{job_type}/limit", dependencies=[Depends(needs("admin"))])
async def limit_type(request: Request, app: App, who: Who, by: By, job_type: str) -> Response:
    form = await page.read(request)
    await check_type(app, who, job_type)
    back = page.back(request, form, "/limits")
    try:
        await app.limit(job_type=job_type, concurrency=whole(form.text("concurrency")), rate=form.text("rate"), by=by)
    except InvalidOption as error:
        return page.redirect_to(request, back, f"Not limited: {error}.", kind="bad")
    return page.redirect_to(request, back, f"Limits of the type {job_type} changed.")


@router.post("/limits/keys", dependencies=[Depends(needs("admin"))])
async def limit_key(request: Request, app: App, who: Who, by: By) -> Response:
    form = await page.read(request)
    check_all_queues(who)
    back = page.back(request, form, "/limits")
    try:
        concurrency, rate = whole(form.text("concurrency")), form.text("rate")
        limit = await app.limit(key=form.text("key"), concurrency=concurrency, rate=rate, by=by)
    except InvalidOption as error:
        return page.redirect_to(request, back, f"Not limited: {error}.", kind="bad")
    return page.redirect_to(request, back, f"Limits of the key {limit.key} changed.")

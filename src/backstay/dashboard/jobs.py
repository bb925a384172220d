"""The jobs page: search, live list and bulk changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, cast

import msgspec
from fastapi import Depends, Request, Response

from backstay import limits
from backstay.app import Backstay, Page
from backstay.clock import to_datetime, to_instant
from backstay.core import records
from backstay.core.checks import count
from backstay.core.states import Status
from backstay.dashboard import page as dashboard_page
from backstay.dashboard import search
from backstay.dashboard.counts import Census
from backstay.dashboard.page import Form
from backstay.dashboard.search import QUALIFIERS, Problem, Search
from backstay.errors import InvalidOption
from backstay.ops import lookup
from backstay.ops.jobs import Action, BulkResult
from backstay.options import FindOptions, JobFilter
from backstay.server import visibility
from backstay.server.auth import App, By, Principal, Who, needs

PAGE = 50
OFFERED_MAX = 100  # types and queues offered; others can be typed
NAMED_MAX = 5  # jobs that a sentence names
LISTED_MAX = 20  # jobs that a confirmation lists before it says how many more
_STATUSES = tuple(Status)

router = dashboard_page.pages()


class Chip(msgspec.Struct, frozen=True):
    """A filter that one click sets or removes."""

    label: str
    line: str
    on: bool
    status: str | None = None
    count: int | None = None  # None: not known


@router.get("/jobs", dependencies=[Depends(needs("read"))])
async def index(request: Request, app: App, who: Who) -> Response:
    asked = search.parse(request.query_params.get("q", ""))
    if asked.job_id is not None:
        return dashboard_page.redirect(request, f"/jobs/{asked.job_id}")
    if asked.part is not None:
        jobs = await lookup.matches(partial(_found, app, who), asked.part)
        if len(jobs) == 1:
            return dashboard_page.redirect(request, f"/jobs/{jobs[0].job_id}")
        asked = msgspec.structs.replace(asked, problems=(Problem(asked.given, _unclear(jobs)),))
    after = request.query_params.get("after") or None
    page = Page()
    if not asked.problems:
        wanted: FindOptions = {**asked.options(), "limit": PAGE, "after": after}
        page = await visibility.found(app, who, **wanted)
    return dashboard_page.render(
        request,
        "jobs.html",
        live="all" if after is None and not asked.problems else None,
        asked=asked,
        jobs=page,
        after=after,
        following=page.next,
        statuses=_status_chips(asked, await _counts(request, asked, who)),
        conditions=_condition_chips(asked),
        narrower=await _narrower(app, who, asked),
        qualifiers=search.EXAMPLES,
        most=limits.BULK_MAX,
    )


def _unclear(jobs: list[lookup.Match]) -> str:
    """Return why a part of an id leads to no job."""
    if not jobs:
        return (
            "matches the ID of no recent job: enter the full ID, or a qualifier such as subject:; archived jobs are"
            " found by their full ID only"
        )
    named = ", ".join(f"{job.job_id} ({job.job_type})" for job in jobs[:NAMED_MAX])
    more = f" and {len(jobs) - NAMED_MAX} more" if len(jobs) > NAMED_MAX else ""
    return f"matches {len(jobs)} jobs: {named}{more}; enter more of the ID"


async def _counts(request: Request, asked: Search, who: Principal) -> Mapping[str, int]:
    """For all jobs only: counting the matches of a search would mean reading them all."""
    if not who.sees_all or asked.problems or asked.conditions.keys() - {"status"}:
        return {}
    standing = (await dashboard_page.shared(request, Census).latest()).standing
    return {} if standing is None else standing.counts


def _status_chips(asked: Search, counts: Mapping[str, int]) -> list[Chip]:
    now = asked.status
    return [Chip("all", asked.having(status=None), now is None, count=sum(counts.values()) if counts else None)] + [
        Chip(
            each.value,
            asked.having(status=None if now is each else each.value),
            now is each,
            each.value,
            counts.get(each.value, 0) if counts else None,
        )
        for each in _STATUSES
    ]


async def _narrower(app: Backstay, who: Principal, asked: Search) -> dict[str, list[Chip]]:
    """More filters by qualifier: types and queues that the key can see."""
    known = [each for each in await app.job_types() if who.sees(each.queue)]
    offered = {"type": {each.job_type for each in known}, "queue": {each.queue for each in known}}
    return {
        name: [Chip(each, asked.having(**{name: each}), False) for each in sorted(values)[:OFFERED_MAX]]
        for name, values in offered.items()
        if values and name not in asked.conditions and not asked.problems
    }


def _condition_chips(asked: Search) -> list[Chip]:
    """The conditions of the search other than the status; a click removes one."""
    return [
        Chip(f"{name}:{search.quoted(value)}", asked.having(**{name: None}), True)
        for name, value in asked.conditions.items()
        if name != "status" and name in QUALIFIERS
    ]


# Bulk changes


@router.post("/jobs/bulk", dependencies=[Depends(needs("submit", "admin"))])
async def change(request: Request, app: App, by: By) -> Response:
    """Asks for confirmation first; with `sure`, makes the change."""
    form = await dashboard_page.read(request)
    action, is_sure = _action(form), bool(form.get("sure"))
    asked_at = _asked_at(form) or to_datetime(app.clock.now())
    options: dict[str, Any] = {"by": by, "reason": form.text("reason"), "dry_run": not is_sure}
    if form.get("whole"):
        options |= {**_conditions(form.get("q", "")), "created_until": asked_at}
    elif form.all("job"):
        options["job_ids"] = form.all("job")
    else:
        return _refused(request, form, "Select some jobs first.")
    if action is Action.CANCEL:
        found = await app.cancel_many(**options)
    else:
        found = await app.retry_many(forget_steps=bool(form.get("forget_steps")), **options)
    if is_sure and (found.changed or found.refused):
        return _report(request, form, action, found)
    if not found.changed:
        return _refused(request, form, f"None of these jobs can be {action.done}.")
    return await _ask(request, action, found, form, asked_at)


def _conditions(line: str) -> JobFilter:
    asked = search.parse(line)
    if asked.problems or asked.job_id is not None:
        raise InvalidOption(f"invalid search {line!r:.80}: reload the jobs page and try again")
    return cast(JobFilter, {name: value for name, value in asked.options().items() if name != "order"})


async def _found(app: Backstay, who: Principal, options: FindOptions) -> records.Page:
    found = await visibility.part(app, who, **options)
    return records.Page(tuple(job.row for job in found), found.next)


def _refused(request: Request, form: Form, notice: str) -> Response:
    return dashboard_page.redirect_to(request, dashboard_page.back(request, form, "/jobs"), notice, kind="bad")


async def _ask(request: Request, action: Action, found: BulkResult, form: Form, asked_at: datetime) -> Response:
    whole = bool(form.get("whole"))
    shown = await dashboard_page.app_of(request).get_many(found.changed[:LISTED_MAX])
    return dashboard_page.render(
        request,
        "bulk.html",
        action=action,
        found=found,
        shown=[job for job in shown if job is not None],
        line=form.get("q", ""),
        whole=whole,
        most=limits.BULK_MAX,
        asked_at=to_instant(asked_at),
        ids=[] if whole else found.changed,
        back=dashboard_page.back(request, form, "/jobs"),
    )


def _report(request: Request, form: Form, action: Action, found: BulkResult) -> Response:
    notice = f"{count(len(found.changed), 'job')} {action.done}."
    more = " More jobs match: repeat to continue." if found.more else ""
    back = dashboard_page.back(request, form, "/jobs")
    if not found.refused:
        return dashboard_page.redirect_to(request, back, notice + more)
    return dashboard_page.render(
        request, "bulk_done.html", action=action, outcome=found, notice=notice + more, back=back, shown=LISTED_MAX * 5
    )


def _action(form: Mapping[str, str]) -> Action:
    try:
        return Action(form.get("whole") or form.get("action", ""))
    except ValueError:
        raise InvalidOption("choose an action: cancel or retry") from None


def _asked_at(form: Mapping[str, str]) -> datetime | None:
    """When confirmation was requested: jobs created since are not included."""
    text = form.get("asked_at", "")
    return to_datetime(int(text)) if text.isdecimal() and len(text) < 17 else None

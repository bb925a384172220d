"""Jobs: searched, followed, and changed many at once."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from fastapi import Depends, Request, Response

from holdfast import ids, limits
from holdfast.app import Holdfast
from holdfast.checks import check_reason
from holdfast.dashboard import bulk, forms, frame, search
from holdfast.dashboard.bulk import Action, Meant, Outcome
from holdfast.dashboard.forms import Form
from holdfast.dashboard.search import QUALIFIERS, Search
from holdfast.dashboard.standing import Census
from holdfast.errors import InvalidOption
from holdfast.finding import FindOptions
from holdfast.lifecycle import Status
from holdfast.reading import Page
from holdfast.server import searching
from holdfast.server.changes import audited
from holdfast.server.guarding import App, Who, needs
from holdfast.server.principals import Principal
from holdfast.words import count

PAGE = 50
OFFERED_MAX = 100  # types and queues to choose from; of more, one writes which
LISTED_MAX = 20  # jobs that a question names before it says how many more
TRAIL_IDS_MAX = 100  # ids that one entry of the audit trail keeps
_STATUSES = tuple(Status)

router = frame.pages()


class Chip(msgspec.Struct, frozen=True):
    """A filter that one click sets or takes away."""

    label: str
    line: str
    on: bool
    status: str | None = None
    count: int | None = None  # where it is known


@router.get("/jobs", dependencies=[Depends(needs("read"))])
async def listed(request: Request, app: App, who: Who) -> Response:
    asked = search.parse(request.query_params.get("q", ""))
    if asked.job_id is not None:
        return frame.redirect(request, f"/jobs/{asked.job_id}")
    after = request.query_params.get("after") or None
    page = Page()
    if not asked.problems:
        wanted: FindOptions = {**asked.options(), "limit": PAGE, "after": after}
        page = await searching.found(app, who, **wanted)
    return frame.render(
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


async def _counts(request: Request, asked: Search, who: Principal) -> Mapping[str, int]:
    """Of all jobs alone: to count what a search finds, all of it would have to be read."""
    if not who.sees_all or asked.problems or asked.conditions.keys() - {"status"}:
        return {}
    standing = (await frame.kept(request, Census).latest()).standing
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


async def _narrower(app: Holdfast, who: Principal, asked: Search) -> dict[str, list[Chip]]:
    """What else there is to ask for, by qualifier: types and queues that the key sees."""
    known = [each for each in await app.store.job_types() if who.sees(each.queue)]
    offered = {"type": {each.job_type for each in known}, "queue": {each.queue for each in known}}
    return {
        name: [Chip(each, asked.having(**{name: each}), False) for each in sorted(values)[:OFFERED_MAX]]
        for name, values in offered.items()
        if values and name not in asked.conditions and not asked.problems
    }


def _condition_chips(asked: Search) -> list[Chip]:
    """What the search asks for beside the status; a click takes it away."""
    return [
        Chip(f"{name}:{search.quoted(value)}", asked.having(**{name: None}), True)
        for name, value in asked.conditions.items()
        if name != "status" and name in QUALIFIERS
    ]


# Many at once


@router.post("/jobs/bulk", dependencies=[Depends(needs("submit", "admin"))])
async def change(request: Request, app: App, who: Who) -> Response:
    """The first time it asks, the second time, with `sure`, it does."""
    form = await forms.read(request)
    action = _action(form)
    line = form.get("q", "")
    whole = bool(form.get("whole"))
    until = _until(form)
    meant = await _meant(request, action, form, line, whole, until)
    if not meant.jobs:
        said = "Tick some jobs first." if not whole and not form.all("id") else f"None of these can be {action.done}."
        return frame.redirect_to(request, forms.back(request, form, "/jobs"), said, kind="bad")
    if not form.get("sure"):
        return _ask(request, action, meant, line=line, whole=whole, form=form)
    reason = check_reason(form.text("reason"))
    target = f"jobs {line}".strip() if whole else count(len(meant.jobs), "job")
    before = {"asked": len(meant.jobs), "ids": [each.job_id for each in meant.jobs[:TRAIL_IDS_MAX]]}
    async with audited(app, who, request, f"jobs.bulk_{action.value}", target, before) as entry:
        outcome = await bulk.change(app, action, meant.jobs, by=who.name, reason=reason)
        entry.after = {"done": len(outcome.done), "refused": dict(outcome.reasons)}
    return _told(request, form, action, meant, outcome)


async def _meant(request: Request, action: Action, form: Form, line: str, whole: bool, until: int | None) -> Meant:
    app, who = frame.app_of(request), frame.principal_of(request)
    assert who is not None  # noqa: S101 - the route has a scope
    if not whole:
        return await bulk.ticked(app, who, action, [ids.canonical(each) for each in form.all("id")])
    asked = search.parse(line)
    if asked.problems or asked.job_id is not None:
        raise InvalidOption(f"{line!r:.80} is no search: open the list again and repeat what you did")
    return await bulk.searched(app, who, action, asked.options(), until)


def _ask(request: Request, action: Action, meant: Meant, *, line: str, whole: bool, form: Form) -> Response:
    return frame.render(
        request,
        "bulk.html",
        action=action,
        meant=meant,
        shown=meant.jobs[:LISTED_MAX],
        line=line,
        whole=whole,
        most=limits.BULK_MAX,
        asked_at=frame.app_of(request).clock.now(),
        ids=[] if whole else [each.job_id for each in meant.jobs],
        back=forms.back(request, form, "/jobs"),
    )


def _told(request: Request, form: Form, action: Action, meant: Meant, outcome: Outcome) -> Response:
    said = f"{count(len(outcome.done), 'job')} {'was' if len(outcome.done) == 1 else 'were'} {action.done}."
    more = " There are more: repeat it for the next." if meant.more else ""
    back = forms.back(request, form, "/jobs")
    if not outcome.refused:
        return frame.redirect_to(request, back, said + more)
    return frame.render(
        request, "bulk_done.html", action=action, outcome=outcome, said=said + more, back=back, shown=LISTED_MAX * 5
    )


def _action(form: Mapping[str, str]) -> Action:
    try:
        return Action(form.get("whole") or form.get("action", ""))
    except ValueError:
        raise InvalidOption("choose what to do: cancel or retry") from None


def _until(form: Mapping[str, str]) -> int | None:
    """When the question was asked: what was created since is not meant."""
    text = form.get("asked_at", "")
    return int(text) if text.isdecimal() and len(text) < 20 else None

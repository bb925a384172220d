"""The trail: who changed what."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from fastapi import Depends, Request, Response

from holdfast import ids
from holdfast.dashboard import frame
from holdfast.dashboard.filters import compact
from holdfast.dashboard.rights import of_all_queues
from holdfast.errors import InvalidOption
from holdfast.server.guarding import needs

PAGE = 50
LINES_MAX = 4  # changes of one entry that stand in the table; more are folded
LINE_MAX = 160  # characters of one
_UNSAID = frozenset({"version"})  # it differs whenever anything does
_NOTHING: tuple[object, ...] = (None, [], {})
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z")

router = frame.pages()


@router.get("/audit", dependencies=[Depends(needs("admin")), Depends(of_all_queues)])
async def audit(request: Request, after: str | None = None) -> Response:
    trail = await frame.app_of(request).audit_trail(after=after, limit=PAGE)
    return frame.render(
        request,
        "audit.html",
        entries=trail,
        first=frame.url(request, "/audit") if after else None,
        next=frame.url(request, "/audit", after=trail.next) if trail.next else None,
        job_url=lambda target: frame.url(request, f"/jobs/{target}") if _is_id(target) else None,
        changed=changed,
        is_long=is_long,
        moment=moment,
    )


class Change(msgspec.Struct, frozen=True):
    """A field that differs. Without a name where there are no fields."""

    name: str
    was: Any
    now: Any


def changed(before: object, after: object) -> list[Change]:
    """What differs. An entry may say less of one side than of the other: what is said of the first alone has not
    changed, except where the sides have nothing in common, and each tells something of its own."""
    if not isinstance(before, dict | None) or not isinstance(after, dict | None):
        return [Change("", before, after)]
    was, now = before or {}, after or {}
    apart = now and not was.keys() & now.keys()
    return [Change(name, None, was[name]) for name in was if apart] + [
        Change(name, was.get(name), value)
        for name, value in now.items()
        if name not in _UNSAID and (was[name] != value if name in was else value not in _NOTHING)
    ]


def is_long(changes: Sequence[Change]) -> bool:
    """Whether it would be more than a few lines of the table."""
    return len(changes) > LINES_MAX or any(len(compact(each.was) + compact(each.now)) > LINE_MAX for each in changes)


def moment(value: object) -> datetime | None:
    """A time, as JSON has it."""
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        return None
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return None


def _is_id(target: str) -> bool:
    try:
        return ids.canonical(target) == target
    except InvalidOption:
        return False

"""The trail: who changed what."""

from __future__ import annotations

from fastapi import Depends, Request, Response

from holdfast import ids
from holdfast.dashboard import frame
from holdfast.dashboard.rights import of_all_queues
from holdfast.errors import InvalidOption
from holdfast.server.guarding import needs

PAGE = 50

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
    )


def changed(before: object, after: object) -> list[tuple[str, object, object]]:
    """What differs: the name of a field, what it was, and what it is. Where nothing can be compared, all of it."""
    if not isinstance(before, dict | None) or not isinstance(after, dict | None):
        return [("", before, after)]
    was, now = before or {}, after or {}
    return [(name, was.get(name), now.get(name)) for name in {**was, **now} if was.get(name) != now.get(name)]


def _is_id(target: str) -> bool:
    try:
        return ids.canonical(target) == target
    except InvalidOption:
        return False

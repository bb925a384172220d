"""Dead letters: what failed for good, by type and error, and the way to run it again."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from holdfast import limits
from holdfast.app import Holdfast
from holdfast.clock import to_datetime
from holdfast.editing import died_of, retry_dead
from holdfast.job import Job
from holdfast.lifecycle import Status
from holdfast.server import changes, documents, searching
from holdfast.server.guarding import App, Who, needs
from holdfast.server.inputs import DeadRetryBody
from holdfast.server.principals import Principal
from holdfast.server.routing import answer, answers, routes
from holdfast.store.types import DeadGroup

GROUPS_MAX = 1_000
LOOKED_AT = 10  # pages of dead letters that are read for a key which sees a part of the queues
Limit = Annotated[int, Query(ge=1, le=GROUPS_MAX, description="How many groups at most.")]


def router(_: Holdfast) -> APIRouter:
    api = routes("dead letters")

    @api.get(
        "/dead",
        summary="List dead letters by type and error",
        dependencies=[Depends(needs("read"))],
        **answers(documents.DeadGroups),
    )
    async def list_dead(app: App, who: Who, limit: Limit = 100) -> Response:
        """The largest group first. For a key with queue patterns, of the newest 1,000 that it sees."""
        if who.sees_all:
            groups = [_document(group) for group in await app.dead(limit)]
        else:
            groups = _grouped(await _newest(app, who))[:limit]
        return answer({"items": groups})

    @api.post(
        "/dead/retry",
        summary="Run dead letters again",
        dependencies=[Depends(needs("admin"))],
        **answers(documents.Retried, 400, 409, 415),
    )
    async def retry_dead_letters(app: App, who: Who, request: Request, body: DeadRetryBody | None = None) -> Response:
        """Those of a type, of an error, of both, or all; each with a fresh budget of attempts."""
        asked = body or DeadRetryBody()
        target = " ".join(each for each in (asked.job_type, asked.error_type) if each) or "all"
        async with changes.audited(app, who, request, "dead.retry", target) as entry:
            sees = None if who.sees_all else who.sees
            number = await retry_dead(app.store, app.clock, asked.job_type, asked.error_type, who.name, sees)
            entry.after = {"retried": number}
        return answer({"retried": number})

    return api


async def _newest(app: Holdfast, who: Principal) -> list[Job]:
    found: list[Job] = []
    after: str | None = None
    for _ in range(LOOKED_AT):
        page = await searching.found(
            app, who, status=Status.FAILED, after=after, limit=limits.FIND_LIMIT_MAX // LOOKED_AT
        )
        found += page
        if (after := page.next) is None:
            break
    return found


def _grouped(jobs: list[Job]) -> list[dict[str, Any]]:
    alike: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        alike.setdefault((job.job_type, died_of(job.record)), []).append(job)
    return [
        {
            "job_type": job_type,
            "error_type": error_type,
            "count": len(members),
            "newest_job_id": (newest := max(members, key=_ended)).job_id,
            "newest_error": newest.last_error or "",
            "newest_at": to_datetime(_ended(newest)),
        }
        for (job_type, error_type), members in sorted(alike.items(), key=lambda each: (-len(each[1]), each[0]))
    ]


def _ended(job: Job) -> int:
    return job.record.completed_at or job.record.updated_at


def _document(group: DeadGroup) -> dict[str, Any]:
    return {
        "job_type": group.job_type,
        "error_type": group.error_type,
        "count": group.count,
        "newest_job_id": group.newest_job_id,
        "newest_error": group.newest_error,
        "newest_at": to_datetime(group.newest_at),
    }

"""Changes over HTTP: each leaves an entry in the audit trail, and says what it was about."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from fastapi import Request

from holdfast import job_json
from holdfast.app import Holdfast
from holdfast.errors import VersionConflict
from holdfast.family_tree import nodes
from holdfast.granting import Audited
from holdfast.job import JobView
from holdfast.server import covering, problems
from holdfast.server.principals import Principal
from holdfast.server.problems import Problem
from holdfast.store.types import JobRecord

_UNREAD: dict[str, Any] = {
    "payload": None,
    "result": None,
    "last_error": None,
    "errors": [],
    "logs": {"entries": [], "log_location": None},
    "metrics": {},
    "artifacts": [],
}


@asynccontextmanager
async def audited(
    app: Holdfast, who: Principal, request: Request, action: str, target: str, before: Any = None
) -> AsyncIterator[Audited]:
    remote = None if request.client is None else request.client.host
    async with app.audited(action, target, by=who.name, via=who.via, before=before, remote=remote) as entry:
        yield entry


def said_of(job: JobView) -> dict[str, Any]:
    """What the trail keeps of a job: what changes can change. No payload."""
    return {
        "job_type": job.job_type,
        "queue": job.queue,
        "status": job.status,
        "priority": job.priority,
        "scheduled_for": job.scheduled_for,
        "version": job.version,
    }


async def shown_to(app: Holdfast, who: Principal, job: JobView) -> dict[str, Any]:
    """The record, as an answer to a change or to a repeated submit. Whoever may not read jobs is told where this one
    stands, and not what is in it: an id or a dedup key can be another's."""
    return await covering.document(app, who, job) if who.may("read") else job_json.document(job) | _UNREAD


@contextmanager
def raced(expected: int | None = None) -> Iterator[None]:
    """Around a change: nobody's precondition failed where none was given, the job or the schedule kept changing."""
    try:
        yield
    except VersionConflict as error:
        if expected is not None:
            raise
        raise Problem(409, "version-conflict", str(error)) from None


async def check_tree(app: Holdfast, who: Principal, top: JobRecord) -> None:
    """A change of a tree is one of each of its jobs: all of them must be the key's."""
    if who.sees_all:
        return
    for node in (await nodes(app.store, top)).values():
        if not who.sees(node.queue):
            raise problems.foreign_queue("every queue of this tree")

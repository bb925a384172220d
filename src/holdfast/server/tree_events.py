"""What a stream tells of a tree of jobs, as server-sent events. Pure, as job_events is.

The id of an event is the time of the latest change that was told. Clocks of those who write differ a little: who comes
again hears some of it twice, which does no harm, because an event has the state of a job and not a step.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.family_tree import Tree
from holdfast.job import Job
from holdfast.server.job_events import event
from holdfast.server.principals import Principal
from holdfast.statuses import TERMINAL

_TOLD = re.compile(r"(\d{1,18})\.([01])", re.ASCII)
OVERLAP_MICROS = 10_000_000
_Seen = tuple[int, float, str]  # of a job: version, progress, stage


class TreeTold(msgspec.Struct, frozen=True):
    """How far the stream of a tree has come."""

    at: Instant = 0
    seen: dict[str, _Seen] | None = None  # None: only the time is known
    counts: tuple[int, int, float] | None = None
    has_ended: bool = False

    @classmethod
    def of(cls, event_id: str | None) -> TreeTold:
        found = _TOLD.fullmatch(event_id or "")
        return cls() if found is None else cls(int(found[1]), has_ended=found[2] == "1")

    @property
    def event_id(self) -> str:
        return f"{self.at}.{int(self.has_ended)}"


def of_tree(tree: Tree, who: Principal, told: TreeTold) -> tuple[bytes, TreeTold]:
    """The events that are new, and how far the stream has come with them. Jobs of others' queues are left out."""
    jobs = [each.job for each in tree if who.sees(each.job.queue)]
    changed = [job for job in jobs if _is_news(job, told)]
    seen = {job.job_id: (job.version, job.progress, job.stage) for job in jobs}
    latest = max((job.record.updated_at for job in jobs), default=0)
    told = msgspec.structs.replace(told, at=max(told.at, latest), seen=seen)
    parts = [event("state", _state(job), told.event_id) for job in changed]
    ended = sum(job.status in TERMINAL for job in jobs)
    counts = (len(jobs), ended, tree.job.progress)
    if counts != told.counts:
        told = msgspec.structs.replace(told, counts=counts)
        said = {"job_id": tree.job.job_id, "jobs": len(jobs), "ended": ended, "progress": tree.job.progress}
        parts.append(event("progress", said, told.event_id))
    if ended == len(jobs):
        told = msgspec.structs.replace(told, has_ended=True)
        parts.append(event("end", {"job_id": tree.job.job_id, "status": tree.job.status}, told.event_id))
    return b"".join(parts), told


def _is_news(job: Job, told: TreeTold) -> bool:
    if told.seen is None:
        return job.record.updated_at >= told.at - OVERLAP_MICROS
    return told.seen.get(job.job_id) != (job.version, job.progress, job.stage)


def _state(job: Job) -> dict[str, Any]:
    return {
        "job_id": job.job_id,
        "parent_job_id": job.parent_job_id,
        "job_type": job.job_type,
        "job_stage": job.job_stage,
        "status": job.status,
        "attempt": job.attempt,
        "version": job.version,
        "progress": job.progress,
        "stage": job.stage,
        "last_error": job.last_error,
        "updated_at": job.updated_at,
    }

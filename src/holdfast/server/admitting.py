"""From a request to a stored job: who may, under which id, and whether an earlier job answers for it.

Rights come from the key alone. Ids inside a body (`depends_on`, `parent`) and jobs that answer for another (`job_id`,
`dedup_key`) are looked at as if they had been asked for by themselves.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from holdfast import codec, ids
from holdfast.app import Holdfast
from holdfast.errors import DedupConflict, UnknownDependency, UnknownJobType
from holdfast.handlers import Handler
from holdfast.job import JobHandle
from holdfast.limits import LISTED_EDGES_MAX
from holdfast.server import crew, problems
from holdfast.server.guarding import check_queue
from holdfast.server.inputs import SubmitBody
from holdfast.server.principals import Principal
from holdfast.server.problems import Problem
from holdfast.store.types import JobRecord, JobType, NewJob
from holdfast.submission import SubmitOptions, build

_IDEMPOTENT = uuid.UUID("b3a52b9f-5d1c-5e0f-8b5e-2f1d8e1c7a44")  # under which ids of Idempotency-Key are made
_LOOKED_UP_MAX = 500  # records read at once to see whose they are

# What a submit says and no later change of the job does: by these a repeat is told from something else.
_LASTING = (
    "queue",
    "subject",
    "tags",
    "max_attempts",
    "timeout_micros",
    "content_hash",
    "dedup_key",
    "parent_job_id",
    "job_stage",
    "trigger_rule",
    "on_dependency_failure",
    "fairness_key",
)


class Asked(msgspec.Struct, frozen=True):
    """A job that somebody wants stored."""

    job_type: str
    payload: Any
    options: SubmitOptions
    by_key: bool = False  # its id is that of an Idempotency-Key


def asked(who: Principal, job_type: str, body: SubmitBody, idempotency_key: str | None) -> Asked:
    options = body.options()
    options.setdefault("created_by", who.name)
    if options.get("reuse") not in (None, False) and not who.sees_all:
        raise Problem(
            403, "foreign-queue", "reuse takes the result of any queue's job, and the key does not reach all of them"
        )
    if idempotency_key is None:
        return Asked(job_type, body.payload, options)
    if "job_id" in options:
        raise Problem(422, "invalid-request", "job_id and Idempotency-Key exclude each other: send one")
    name = "\0".join((who.key_id or "", job_type, idempotency_key))
    options["job_id"] = str(uuid.uuid5(_IDEMPOTENT, name))
    return Asked(job_type, body.payload, options, by_key=True)


async def submit(app: Holdfast, who: Principal, job: Asked) -> JobHandle:
    if not who.sees_all:
        await _check_rights(app, who, job)
    handle = await app.submit(job.job_type, job.payload, **job.options)
    return await checked(app, who, job, handle)


async def target_of(app: Holdfast, who: Principal, job_type: str) -> Handler | JobType:
    """The type that a job shall have. Where there is none, only those are named that the key can do something with."""
    try:
        return await app._target(job_type)
    except UnknownJobType:
        if who.sees_all:
            raise
        names = ", ".join(sorted(await crew.types_seen(app, who))) or "none"
        raise UnknownJobType(f"no worker has announced {job_type!r} (known, of this key's queues: {names})") from None


async def checked(app: Holdfast, who: Principal, job: Asked, handle: JobHandle) -> JobHandle:
    """The job that answers, if it is one that may: the key sees it, and its Idempotency-Key meant just this."""
    if not handle.deduplicated:
        return handle
    if not who.sees(handle.queue):
        raise problems.of_error(DedupConflict("a job of a queue that this key does not reach has this id or dedup key"))
    if job.by_key and handle.job_id == job.options["job_id"] and not await _is_repeat(app, job, handle.record):
        raise Problem(
            409,
            "idempotency-key-reused",
            f"this Idempotency-Key made job {handle.job_id} from another body: send another key",
            job_id=handle.job_id,
        )
    return handle


async def _check_rights(app: Holdfast, who: Principal, job: Asked) -> None:
    target = await target_of(app, who, job.job_type)
    check_queue(who, job.options.get("queue") or target.queue)
    inner = [ids.canonical(str(each)) for each in job.options.get("depends_on", ())]
    if "parent" in job.options:
        inner.append(ids.canonical(str(job.options["parent"])))
    for start in range(0, len(inner), _LOOKED_UP_MAX):
        part = inner[start : start + _LOOKED_UP_MAX]
        for job_id, record in zip(part, await app.store.get(part), strict=True):
            if record is None or not who.sees(record.queue):
                raise UnknownDependency(f"no job {job_id} to depend on or to be the parent: nothing was stored")


async def _is_repeat(app: Holdfast, job: Asked, stored: JobRecord) -> bool:
    """Whether this is what the stored job was made from. Its priority and its time may have been changed since."""
    if stored.archived_at is not None:
        return True  # of which nothing is left to compare with
    wanted = build(await app._target(job.job_type), job.payload, stored.job_id, app.clock.now(), job.options)
    if any(getattr(wanted, name) != getattr(stored, name) for name in _LASTING):
        return False
    if not _same_edges(wanted.depends_on, stored.dependencies):
        return False
    return wanted.payload_version != stored.payload_version or _same(wanted, stored)


def _same_edges(wanted: tuple[str, ...], listed: tuple[str, ...]) -> bool:
    """A record lists some of them, in whatever order."""
    return len(listed) == min(len(wanted), LISTED_EDGES_MAX) and set(listed) <= set(wanted)


def _same(wanted: NewJob, stored: JobRecord) -> bool:
    return wanted.payload == stored.payload or codec.decode(wanted.payload) == codec.decode(stored.payload)

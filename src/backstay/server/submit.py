"""Submits over HTTP: permissions, the id of the job, and whether an earlier job answers.

Permissions come from the key alone. Ids inside a body (`depends_on`, `parent`) and jobs that answer for another
(`job_id`, `dedup_key`) are checked as if they had been requested by themselves. A key for some queues has dedup keys of
its own.
"""

from __future__ import annotations

import uuid
from typing import Any, cast

import msgspec

from backstay import codec, ids
from backstay.app import Backstay
from backstay.core import dedup
from backstay.core.records import JobRecord, JobType, NewJob
from backstay.core.schedules import ScheduleOptions
from backstay.errors import DedupConflict, InvalidOption, UnknownDependency, UnknownJobType
from backstay.handlers import Handler
from backstay.job import JobHandle
from backstay.limits import KEY_LENGTH_MAX, LISTED_EDGES_MAX
from backstay.options import SubmitOptions, build, derived_dedup_for
from backstay.server import problems, visibility
from backstay.server.auth import Principal, check_queue
from backstay.server.problems import Problem
from backstay.server.request_models import SubmitBody

_IDEMPOTENT = uuid.UUID("b3a52b9f-5d1c-5e0f-8b5e-2f1d8e1c7a44")  # namespace of the ids made from Idempotency-Key

# Fields in which a repeat of a submit may differ: they are compared by themselves, may have been changed since, or do
# not come from the body.
_MAY_DIFFER = {
    *("job_id", "job_type", "payload", "payload_version", "priority", "scheduled_for", "created_by", "root_job_id"),
    *("concurrency_key", "concurrency_limit", "rate_key", "fairness_weight", "traceparent", "schedule", "tick_at"),
    "expires_at",
}
_LASTING = tuple(
    name for name in NewJob.__struct_fields__ if name in JobRecord.__struct_fields__ and name not in _MAY_DIFFER
)


class Asked(msgspec.Struct, frozen=True):
    """A requested submit."""

    job_type: str
    payload: Any
    options: SubmitOptions
    by_key: bool = False  # its id is that of an Idempotency-Key


def asked(who: Principal, job_type: str, body: SubmitBody, idempotency_key: str | None) -> Asked:
    options = body.options()
    options.setdefault("created_by", who.name)
    if not who.sees_all:
        _refuse_reuse(options)
    if idempotency_key is None:
        return Asked(job_type, body.payload, options)
    if "job_id" in options:
        raise Problem(422, "invalid-request", "job_id and Idempotency-Key are mutually exclusive: send one")
    name = "\0".join((who.key_id or "", job_type, idempotency_key))
    options["job_id"] = str(uuid.uuid5(_IDEMPOTENT, name))
    return Asked(job_type, body.payload, options, by_key=True)


async def submit(app: Backstay, who: Principal, job: Asked) -> JobHandle:
    if who.sees_all:
        return await checked(app, who, job, await app.submit(job.job_type, job.payload, **job.options))
    target = await target_of(app, who, job.job_type)
    queue = await _check_rights(app, who, job, target)
    job = msgspec.structs.replace(job, options=_scoped(_without_foreign(app, target, queue, job), queue))
    try:
        handle = await app.submit(job.job_type, job.payload, **job.options)
    except DedupConflict as error:
        raise DedupConflict(dedup.without_scope(str(error), queue)) from None
    return await checked(app, who, job, handle)


def _without_foreign(app: Backstay, target: Handler | JobType, queue: str, job: Asked) -> SubmitOptions:
    """Return the options without what the type derives for jobs of any queue. A derived key is that of everyone only in
    the queue of the type, where the jobs that share it are; in another one it belongs to the caller."""
    options = SubmitOptions(**job.options)
    if target.derivation is None:
        return options
    options.setdefault("reuse", False)
    if queue != target.queue and target.derivation.derives("dedup_key") and options.get("dedup_key") is None:
        built = build(target, job.payload, ids.new_id(app.clock.now()), app.clock.now(), job.options)
        if built.dedup_key is not None:
            options["dedup_key"] = built.dedup_key
            options.setdefault("dedup_for", derived_dedup_for(target.derivation))
    return options


def _scoped(options: SubmitOptions, queue: str) -> SubmitOptions:
    """Return the dedup key as stored: a key for some queues has dedup keys of its own in each of them; see
    core/dedup.py."""
    dedup_key = options.get("dedup_key")
    if dedup_key is None:
        return options
    longest = KEY_LENGTH_MAX - len(queue) - 1
    if len(dedup_key) > longest:
        raise InvalidOption(f"dedup_key={dedup_key!r:.80}: with this key it has at most {longest} characters")
    return {**options, "dedup_key": dedup.scoped(dedup_key, queue)}


async def of_schedule(
    app: Backstay, who: Principal, job_type: str, payload: Any, options: ScheduleOptions
) -> ScheduleOptions:
    """Return the options of a schedule's jobs as they are stored: the same as for submits apply."""
    target = await target_of(app, who, job_type)
    queue = check_queue(who, options.get("queue") or target.queue)
    if who.sees_all:
        return options
    _refuse_reuse(options)
    derives = target.derivation is not None and target.derivation.derives("dedup_key")
    if derives and queue != target.queue and options.get("dedup_key") is None:
        raise Problem(
            403,
            "foreign-queue",
            f"the dedup key of {job_type} is that of all jobs in the queue {target.queue}: give a dedup_key",
        )
    job = Asked(job_type, payload, cast(SubmitOptions, options))
    return cast(ScheduleOptions, _scoped(_without_foreign(app, target, queue, job), queue))


def _refuse_reuse(options: SubmitOptions | ScheduleOptions) -> None:
    if options.get("reuse") not in (None, False):
        raise Problem(
            403,
            "foreign-queue",
            "reuse can take a result from any queue, but this key does not have access to all of them",
        )


async def target_of(app: Backstay, who: Principal, job_type: str) -> Handler | JobType:
    """Return the type of a job. If there is no such type, the error names only types that the key may submit."""
    try:
        return await app.type_of(job_type)
    except UnknownJobType:
        if who.sees_all:
            raise
        names = ", ".join(sorted(await visibility.types_seen(app, who))) or "none"
        raise UnknownJobType(f"no worker has announced {job_type!r} (known in this key's queues: {names})") from None


async def checked(app: Backstay, who: Principal, job: Asked, handle: JobHandle) -> JobHandle:
    """Return the job if it may answer the submit: the key sees it, and it was submitted with the same Idempotency-Key
    for the same thing."""
    if not handle.deduplicated:
        return handle
    if not who.sees(handle.queue):
        raise problems.of_error(DedupConflict("this id is taken: send another"))
    if job.by_key and handle.job_id == job.options["job_id"] and not await _is_repeat(app, job, handle.row):
        raise Problem(
            409,
            "idempotency-key-reused",
            f"this Idempotency-Key was used for job {handle.job_id} with a different body: send another key",
            job_id=handle.job_id,
        )
    return handle


async def _check_rights(app: Backstay, who: Principal, job: Asked, target: Handler | JobType) -> str:
    """Return the queue of the job."""
    queue = check_queue(who, job.options.get("queue") or target.queue)
    inner = [ids.canonical(str(each)) for each in job.options.get("depends_on", ())]
    if "parent" in job.options:
        inner.append(ids.canonical(str(job.options["parent"])))
    for start in range(0, len(inner), visibility.READ_AT_ONCE):
        part = inner[start : start + visibility.READ_AT_ONCE]
        for job_id, found in zip(part, await app.get_many(part), strict=True):
            if found is None or not who.sees(found.queue):
                raise UnknownDependency(f"no job {job_id} to depend on or to be the parent: nothing was stored")
    return queue


async def _is_repeat(app: Backstay, job: Asked, stored: JobRecord) -> bool:
    """Return whether the stored job was submitted in the same way. Its priority and time may have been changed
    since."""
    if stored.archived_at is not None:
        return True  # nothing is left to compare with
    # As of then: a dedup key may be of that day.
    wanted = build(await app.type_of(job.job_type), job.payload, stored.job_id, stored.created_at, job.options)
    if any(getattr(wanted, name) != getattr(stored, name) for name in _LASTING):
        return False
    if not _same_edges(wanted.depends_on, stored.dependencies):
        return False
    return wanted.payload_version != stored.payload_version or _same(wanted, stored)


def _same_edges(wanted: tuple[str, ...], listed: tuple[str, ...]) -> bool:
    """Return whether the dependencies match. A record lists some of them, in any order."""
    return len(listed) == min(len(wanted), LISTED_EDGES_MAX) and set(listed) <= set(wanted)


def _same(wanted: NewJob, stored: JobRecord) -> bool:
    return wanted.payload == stored.payload or codec.decode(wanted.payload) == codec.decode(stored.payload)

"""Explanations of jobs, as data: a reason, the parameters of its sentence, and the jobs that it is about.

Only `_sentence` turns an `Explanation` into English. The server hides jobs of other queues by dropping parameters, the
dashboard links the jobs among `parts()`; neither reads the text. ops/explain.py finds out which explanation is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Literal, assert_never

import msgspec

from backstay.core.checks import after_attempts, span
from backstay.core.event_details import Dependency
from backstay.core.forecast import Estimate, Unforeseen
from backstay.core.records import JobRecord
from backstay.core.states import STAYING, Event, Status
from backstay.limits import AHEAD_MAX

NAMED_MAX = 3  # jobs or workers that a sentence names; the rest is a number
_OFFERS_NAMED_MAX = 10  # types or queues that a sentence names


class Reason(StrEnum):
    """Every reason that `explain` can give."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ARCHIVED = "archived"
    RUNNING = "running"
    LEASE_EXPIRED = "lease_expired"
    WAITING = "waiting"
    WAITING_FOR_CHILDREN = "waiting_for_children"
    WAITING_FOR_EVENT = "waiting_for_event"
    RING = "ring"
    SCHEDULED = "scheduled"
    SNOOZED = "snoozed"
    SLEEPING = "sleeping"
    BACKING_OFF = "backing_off"
    OVERDUE = "overdue"
    QUEUE_PAUSED = "queue_paused"
    TYPE_PAUSED = "type_paused"
    MOVED = "moved"
    NO_WORKER = "no_worker"
    NO_WORKER_FOR_TYPE = "no_worker_for_type"
    NO_WORKER_FOR_QUEUE = "no_worker_for_queue"
    NO_WORKER_FOR_VERSION = "no_worker_for_version"
    TYPE_LIMITED = "type_limited"
    KEY_FULL = "key_full"
    RATE_LIMITED = "rate_limited"
    RUNS_ALONE = "runs_alone"
    TYPE_FULL = "type_full"
    WORKERS_BUSY = "workers_busy"
    IN_LINE = "in_line"


class RelatedJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """A job that an explanation names. If the reader may not see it, it has no id, name, status or error."""

    job_id: str | None = None
    name: str | None = None  # its stage or its type
    status: Status | None = None
    error: str | None = None
    is_child: bool = False  # of the job before it in a ring
    is_reused: bool = False  # an identical job, whose result will be reused

    def __str__(self) -> str:
        return self.job_id or "a job in another queue"


class Params(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The parameters of a sentence. Each reason sets a few of them; docs/reference/operating.md lists which."""

    # When and how
    at: datetime | None = None  # it ended, it started, the queue or type was paused, the worker was last seen
    archived_at: datetime | None = None
    status: Status | None = None  # how an archived job ended
    by: str | None = None
    message: str | None = None  # what a person or a handler gave as the reason
    error: str | None = None
    attempt: int | None = None
    failures: int | None = None
    max_attempts: int | None = None
    progress: float | None = None
    stage: str | None = None

    # Other jobs
    cause: Literal["dependency", "children", "subtree"] | None = None  # what it ended with
    jobs: tuple[RelatedJob, ...] = ()
    more: int = 0  # jobs or workers that are not named
    children: int | None = None
    open_children: int | None = None
    dependencies_listed: int | None = None  # it waits for others than these
    ahead: int | None = None  # jobs that come first, counted up to AHEAD_MAX
    line: Literal["queue", "key", "fairness_key"] | None = None  # what those share with it

    # Queue, type and keys
    queue: str | None = None
    job_type: str | None = None
    key: str | None = None  # concurrency, rate or fairness key; the correlation key of an event
    event: str | None = None  # the event that it waits for
    step: str | None = None  # the name of a sleep
    limit: int | None = None
    cost: int | None = None  # what a start takes of the rate, if that is more than 1
    payload_version: int | None = None
    readable_version: int | None = None
    store: str | None = None  # where the queue moves
    is_done: bool | None = None  # whether it has moved

    # Ticks of its schedule that made no job, because this one was active: how many, and the last
    schedule: str | None = None
    skipped: int = 0
    skipped_at: datetime | None = None

    # Workers
    worker_id: str | None = None
    is_gone: bool | None = None
    workers: tuple[str, ...] = ()
    offers: tuple[str, ...] = ()  # the types that they handle, or the queues that they serve
    limits: Mapping[str, int] = {}  # jobs of the type that each runs at once
    has_live_worker: bool | None = None
    is_blocking: bool | None = None
    blocked_since: datetime | None = None  # the worker's event loop, by the job that is named, if it is known


Part = str | RelatedJob


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job is not running, or how it ended. `str()` is the sentence."""

    reason: Reason
    params: Params = Params()
    until: datetime | None = None  # when this ends, where that is known
    job_ids: tuple[str, ...] = ()  # all jobs that it is about, also those that the sentence only counts
    estimate: Estimate | None = None  # when it starts; without one …
    unforeseen: Unforeseen | None = None  # … why there is none, unless it has started

    def __str__(self) -> str:
        return "".join(map(str, self.parts()))

    def parts(self) -> list[Part]:
        """Return the sentence in parts, so that the jobs in it can be told from the words."""
        return [part for part in (*_sentence(self), *_start(self), *_skipped(self.params)) if part]


# The sentence


def _sentence(found: Explanation) -> Iterator[Part]:
    p = found.params
    match found.reason:
        case Reason.COMPLETED:
            yield f"it completed at {_at(p.at)}"
        case Reason.ARCHIVED:
            yield f"it {_ended(p.status)} at {_at(p.at)} and was archived at {_at(p.archived_at)}"
        case Reason.FAILED | Reason.CANCELLED:
            yield from _end(found.reason, p)
        case Reason.RUNNING:
            yield f"it is running: attempt {p.attempt} on {p.worker_id} since {_at(p.at)}"
            yield (f", {p.progress:.0%}" if p.progress else "") + (f" {p.stage}" if p.stage else "")
            yield from _blocked(p)
        case Reason.LEASE_EXPIRED:
            lost = f"the lease of its worker {p.worker_id} expired at {_at(found.until)}"
            yield f"its worker {p.worker_id} is gone" if p.is_gone else lost
            yield "; another worker will pick it up" if p.has_live_worker else "; no worker is alive: start one"
        case Reason.WAITING | Reason.WAITING_FOR_CHILDREN | Reason.RING:
            yield from _wait(found.reason, p)
        case Reason.WAITING_FOR_EVENT:
            yield f"it is waiting for the event {p.event}{f' of the key {p.key}' if p.key else ''} since {_at(p.at)}"
            yield f", until {_at(found.until)} at the latest" if found.until else ""
            yield ": send it with app.send_event()"
        case Reason.SLEEPING:
            yield f"it is sleeping until {_at(found.until)} ({p.step})"
        case Reason.SCHEDULED:
            yield f"it is scheduled for {_at(found.until)}{_by(', rescheduled by', p.by)}{_because(p.message)}"
        case Reason.SNOOZED:
            yield f"it is snoozed until {_at(found.until)}{_because(p.message)}"
        case Reason.BACKING_OFF:
            yield f"it retries at {_at(found.until)} after {p.failures} of {p.max_attempts} attempts failed: {p.error}"
        case Reason.OVERDUE:
            yield f"it became due at {_at(found.until)}"
            yield "; a worker will start it in a moment" if p.has_live_worker else "; no worker is alive: start one"
        case Reason.QUEUE_PAUSED:
            yield f"the queue {p.queue} was paused{_by(' by', p.by)} at {_at(p.at)}{_because(p.message)}"
            yield f"; it resumes at {_at(found.until)}" if found.until else ""
        case Reason.TYPE_PAUSED:
            yield f"the type {p.job_type} was paused{_by(' by', p.by)} at {_at(p.at)}{_because(p.message)}"
            yield f"; it resumes at {_at(found.until)}" if found.until else ""
        case Reason.MOVED:
            yield f"this queue {'was' if p.is_done else 'is being'} transferred to {p.store or 'another store'}"
            if p.store:
                yield f": set BACKSTAY_URL to it{'' if p.is_done else ' once that is done'}"
        case Reason.NO_WORKER | Reason.NO_WORKER_FOR_TYPE | Reason.NO_WORKER_FOR_QUEUE | Reason.NO_WORKER_FOR_VERSION:
            yield from _unserved(found.reason, p)
        case Reason.TYPE_LIMITED:
            yield f"the type {p.job_type} was limited to {p.limit} at once{_by(' by', p.by)}: "
            yield from _listed([[job] for job in p.jobs], p.more)
            yield f" {'is' if len(p.jobs) + p.more == 1 else 'are'} running"
        case Reason.KEY_FULL:
            yield f"the concurrency key {p.key} is at its limit of {p.limit}: "
            yield from _listed([[job] for job in p.jobs], p.more)
            yield f" {'is' if len(p.jobs) + p.more == 1 else 'are'} running"
        case Reason.RATE_LIMITED:
            of = f"key {p.key}" if p.job_type is None else f"type {p.job_type}"
            if p.cost is None:
                yield f"the rate limit of the {of} is used up until {_at(found.until)}"
            else:
                yield f"it costs {p.cost:,}, which the rate limit of the {of} allows at {_at(found.until)}"
        case Reason.RUNS_ALONE:
            yield (
                f"it lost its worker at {_at(p.at)} and will run alone ({p.failures} of {p.max_attempts} attempts have"
                " failed), so that no job takes others with it: a worker makes room for it when it is its turn"
            )
        case Reason.TYPE_FULL:
            yield f"every worker that handles {p.job_type} already runs as many of them as it may: "
            yield from _listed([[f"{worker_id} ({limit})"] for worker_id, limit in p.limits.items()], p.more)
            yield f"; {_place(p)}"
        case Reason.WORKERS_BUSY:
            yield f"every worker that handles {p.job_type} is busy: {_workers(p)}; {_place(p)}"
        case Reason.IN_LINE:
            yield f"{'it is in line' if p.ahead else 'a worker will claim it in a moment'}: {_place(p)}"
        case _:
            assert_never(found.reason)


def _start(found: Explanation) -> Iterator[Part]:
    """Say when the job starts, if that is more than the sentence says."""
    if found.unforeseen is Unforeseen.NO_HISTORY:
        yield "; when it starts is not known: no attempt of its type has ended yet"
    if (e := found.estimate) is None or (e.seconds < 1 and not e.ahead):
        return
    when = "more than" if e.high is None else "about"
    slots = f"{e.slots:,} slot{'' if e.slots == 1 else 's'}"
    yield f"; it starts in {when} {span(e.seconds)}: {e.ahead:,} before it, {span(e.each_seconds)} each, {slots}"


def _skipped(p: Params) -> Iterator[Part]:
    if p.skipped:
        ticks = "a tick" if p.skipped == 1 else f"{p.skipped} ticks, the last"
        yield f"; its schedule {p.schedule} skipped {ticks} at {_at(p.skipped_at)}, because this job was active"


def _blocked(p: Params) -> Iterator[Part]:
    if p.blocked_since is None:
        return
    if p.is_blocking:
        yield f"; it has blocked the event loop of that worker since {_at(p.blocked_since)}"
        return
    yield f"; the event loop of that worker has been blocked since {_at(p.blocked_since)}"
    if p.jobs:
        yield " by "
        yield p.jobs[0]
        yield f" ({p.jobs[0].name})" if p.jobs[0].name else ""


def _end(reason: Reason, p: Params) -> Iterator[Part]:
    ended = "failed" if reason is Reason.FAILED else "was cancelled"
    yield f"it {ended} at {_at(p.at)}"
    match p.cause:
        case "dependency":
            if not p.jobs:
                yield " because a job it depends on did not complete"
            for job in p.jobs:
                yield from (" because ", job, f" {_ended(job.status)}: retry that job first")
        case "children":
            yield " because of its children"
            yield ": " if p.jobs or p.more else ""
            yield from _listed([_bad_child(job) for job in p.jobs], p.more)
            yield "; retry it with its subtree to run them again"
        case "subtree":
            yield f"{_by(' by', p.by)} with the subtree of "
            yield from p.jobs
            yield _because(p.message)
        case None if reason is Reason.CANCELLED:
            yield f"{_by(' by', p.by)}{_because(p.message)}"
        case None:
            yield f"{after_attempts(p.failures, p.max_attempts)}: {p.error}; retry it to run it again"


def _bad_child(job: RelatedJob) -> list[Part]:
    name = f"{job.name} " if job.name else ""
    return [name, job, f" {_ended(job.status)}", f" ({job.error})" if job.error else ""]


def _wait(reason: Reason, p: Params) -> Iterator[Part]:
    if reason is Reason.RING:
        yield "these jobs wait for one another: "
        for job in p.jobs:
            yield from ("its child " if job.is_child else "", f"{job.name} " if job.name else "", job, " → ")
        first = p.jobs[0]
        yield from (f"{first.name} " if first.name else "", first, "; cancel one of them")
        return
    if reason is Reason.WAITING_FOR_CHILDREN:
        yield f"it is waiting for {p.open_children} of its {p.children} children"
        yield ": " if p.jobs else ""
        more = p.more if p.jobs else 0
    else:
        yield "it is waiting for "
        more = p.more
        if not p.jobs and p.dependencies_listed:
            yield f"jobs other than the first {p.dependencies_listed} it depends on"
        elif not p.jobs:
            yield "jobs that are finishing now"
    yield from _listed([_waited_for(job) for job in p.jobs], more)


def _waited_for(job: RelatedJob) -> list[Part]:
    status = job.status.value if job.status else "unknown" if job.job_id else None  # None: the reader may not see it
    said = [each for each in (status, "whose result it will reuse" if job.is_reused else None) if each]
    return [job, f" ({', '.join(said)})" if said else ""]


def _unserved(reason: Reason, p: Params) -> Iterator[Part]:
    one = len(p.workers) + p.more == 1
    offers = ", ".join(p.offers[:_OFFERS_NAMED_MAX]) or "none"
    beyond = len(p.offers) - _OFFERS_NAMED_MAX
    offers += f" and {beyond} more" if beyond > 0 else ""
    if reason is Reason.NO_WORKER:
        yield "no worker is alive"
        if p.workers:
            if p.blocked_since is None:
                why = f"{'is' if one else 'are'} stopping"
            else:
                why = f"{'has' if one else 'have'} been blocked since {_at(p.blocked_since)}"
            yield f" except {_workers(p)}, which {why}"
        elif p.worker_id:
            yield f" ({p.worker_id} was last seen at {_at(p.at)})"
        yield ": start one"
    elif reason is Reason.NO_WORKER_FOR_TYPE:
        yield f"no live worker handles {p.job_type}"
        yield f": {_workers(p)} handle{'s' if one else ''} {offers}" if p.workers else ""
    elif reason is Reason.NO_WORKER_FOR_QUEUE:
        yield f"no live worker that handles {p.job_type} serves the queue {p.queue}"
        yield f": {_workers(p)} serve{'s' if one else ''} {offers}" if p.workers else ""
    else:
        yield f"its payload has version {p.payload_version}, but live workers read {p.job_type} only up to version"
        yield f" {p.readable_version}: upgrade them"


def _place(p: Params) -> str:
    """Return how many pending jobs are ahead: of its queue and type, or of the key that holds it back. Jobs that a key
    holds back do not take turns."""
    kin, turns = "its queue and type", ""
    if p.line == "key":
        kin = "its key"
    elif p.line == "fairness_key":
        kin, turns = f"the key {p.key}", ", and keys take turns"
    if not p.ahead:
        return f"it is next in line for {kin}{turns}"
    count = f"{p.ahead:,} or more" if p.ahead >= AHEAD_MAX else str(p.ahead)
    return f"{count} {'job' if p.ahead == 1 else 'jobs'} of {kin} {'is' if p.ahead == 1 else 'are'} ahead of it{turns}"


def _listed(items: Sequence[Sequence[Part]], more: int) -> Iterator[Part]:
    groups = [*items, [f"{more} more"]] if more > 0 else items
    for place, group in enumerate(groups):
        if place:
            yield " and " if place == len(groups) - 1 else ", "
        yield from group


def _workers(p: Params) -> str:
    return "".join(map(str, _listed([[worker_id] for worker_id in p.workers], p.more)))


def _ended(status: Status | None) -> str:
    return "was cancelled" if status is Status.CANCELLED else status.value if status else "ended"


def _by(words: str, whom: str | None) -> str:
    return f"{words} {whom}" if whom else ""


def _because(message: str | None) -> str:
    return f": {message}" if message else ""


def _at(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S} UTC"


# How a job ended with others


def ended_with_children(job: JobRecord) -> bool:
    """Return whether it was waiting for its children, and they ended in a way that its trigger rule does not accept."""
    if not _ended_waiting(job):
        return False
    came = (each.event for each in reversed(job.history[:-1]) if each.event not in STAYING)
    return next(came, None) is Event.WAIT_FOR_CHILDREN


def ended_with_dependency(job: JobRecord) -> bool:
    """Return whether it was waiting for other jobs, and they ended in a way that its trigger rule does not accept."""
    return _ended_waiting(job) and not ended_with_children(job)


def failed_dependency(job: JobRecord) -> RelatedJob | None:
    """Return the dependency whose end ended this job."""
    details = job.history[-1].details if ended_with_dependency(job) else None
    if not isinstance(details, Dependency):
        return None
    return RelatedJob(job_id=details.job_id, status=details.outcome)


def _ended_waiting(job: JobRecord) -> bool:
    """Return whether it failed or was cancelled while it was waiting for others."""
    ended_badly = job.status in (Status.FAILED, Status.CANCELLED)
    return ended_badly and bool(job.history) and job.history[-1].event is Event.RELEASE

"""The lifecycle of a job: states, events, allowed transitions, and how an outcome becomes a transition.

This is the only place that defines them. It is pure: an outcome goes in, a transition comes out; no I/O, no clock, no
randomness of its own. Stores apply transitions; they never create one. A transition carries the guards under which it
was decided (source state, attempt, and the version, token or lease that the decider saw), and a store applies it only
while they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, Unpack, assert_never

import msgspec

from backstay.backoff import Backoff
from backstay.clock import Instant, to_datetime
from backstay.core import suspicion
from backstay.core.dependencies import Awaits
from backstay.core.event_details import Awaited, DueTime, EventDetails, Priority, Slept, Tick
from backstay.core.records import LEASE_LOST, ClaimedJob, ExpiredClaim, JobRecord, NewJob, Node
from backstay.core.records import Effect as Effect
from backstay.core.records import ErrorEntry as ErrorEntry
from backstay.core.records import Kind as Kind
from backstay.core.records import Revision as Revision
from backstay.core.records import Staged as Staged
from backstay.core.records import Transition as Transition
from backstay.core.states import ACTIVE as ACTIVE
from backstay.core.states import STAYING as STAYING
from backstay.core.states import TERMINAL as TERMINAL
from backstay.core.states import Counted as Counted
from backstay.core.states import Event as Event
from backstay.core.states import Status as Status
from backstay.core.states import also_counted as also_counted
from backstay.core.states import bucket_of as bucket_of
from backstay.core.states import counted as counted
from backstay.core.waits import EventWait
from backstay.errors import IllegalTransition
from backstay.limits import GIVE_BACKS_MAX, NAME_LENGTH_MAX, REASON_LENGTH_MAX, SNOOZES_MAX, WAITS_MAX

_S = Status
# None means "no job yet".
EDGES: Mapping[Event, tuple[frozenset[Status | None], frozenset[Status]]] = {
    Event.SUBMIT: (frozenset({None}), frozenset({_S.WAITING, _S.SCHEDULED, _S.PENDING})),
    Event.REUSE: (frozenset({None, _S.WAITING}), frozenset({_S.COMPLETED})),
    Event.RELEASE: (
        frozenset({_S.WAITING}),
        frozenset({_S.PENDING, _S.SCHEDULED, _S.CANCELLED, _S.FAILED}),
    ),
    # A wait for an event is due at its timeout.
    Event.DUE: (frozenset({_S.SCHEDULED, _S.RETRYING, _S.WAITING}), frozenset({_S.PENDING})),
    Event.CLAIM: (frozenset({_S.PENDING}), frozenset({_S.PROCESSING})),
    Event.COMPLETE: (frozenset({_S.PROCESSING}), frozenset({_S.COMPLETED})),
    Event.RETRY: (frozenset({_S.PROCESSING}), frozenset({_S.RETRYING})),
    Event.EXHAUST: (frozenset({_S.PROCESSING}), frozenset({_S.FAILED})),
    Event.DISCARD: (frozenset({_S.PROCESSING}), frozenset({_S.FAILED})),
    Event.SNOOZE: (frozenset({_S.PROCESSING}), frozenset({_S.SCHEDULED})),
    Event.GIVE_BACK: (frozenset({_S.PROCESSING}), frozenset({_S.PENDING})),
    Event.WAIT_FOR_CHILDREN: (frozenset({_S.PROCESSING}), frozenset({_S.WAITING})),
    Event.SLEEP: (frozenset({_S.PROCESSING}), frozenset({_S.SCHEDULED})),
    Event.WAIT_FOR_EVENT: (frozenset({_S.PROCESSING}), frozenset({_S.WAITING})),
    Event.RESCUE: (frozenset({_S.PROCESSING}), frozenset({_S.RETRYING, _S.FAILED})),
    Event.RESCHEDULE: (frozenset({_S.PENDING, _S.SCHEDULED}), frozenset({_S.SCHEDULED, _S.PENDING})),
    Event.REPRIORITISE: (frozenset(ACTIVE), frozenset(ACTIVE)),
    Event.UPDATE: (frozenset(ACTIVE - {_S.PROCESSING}), frozenset(ACTIVE - {_S.PROCESSING})),
    Event.REPLACE: (frozenset(ACTIVE - {_S.PROCESSING}), frozenset(ACTIVE - {_S.PROCESSING})),
    Event.EXPIRE: (frozenset({_S.WAITING, _S.SCHEDULED, _S.PENDING}), frozenset({_S.CANCELLED})),
    Event.CANCEL: (frozenset(ACTIVE), frozenset({_S.CANCELLED})),
    Event.MANUAL_RETRY: (frozenset(TERMINAL), frozenset({_S.PENDING, _S.WAITING})),
    Event.SKIP_TICK: (frozenset(ACTIVE), frozenset(ACTIVE)),
}


_IN_TIME: frozenset[Status | None] = frozenset({_S.SCHEDULED, _S.PENDING})


def allowed(event: Event, source: Status | None, target: Status) -> bool:
    sources, targets = EDGES[event]
    if event in STAYING and source is not target:
        return False
    if event is Event.REPLACE and source is not target and not {source, target} <= _IN_TIME:
        return False  # a later submit changes when the job is due, and nothing else that it waits for
    return source in sources and target in targets


def edges() -> list[tuple[Event, Status | None, Status]]:
    """Yield every allowed change of state."""
    return [
        (event, source, target)
        for event, (sources, targets) in EDGES.items()
        for source in sorted(sources, key=str)
        for target in sorted(targets)
        if allowed(event, source, target)
    ]


def check(event: Event, source: Status | None, target: Status) -> None:
    if not allowed(event, source, target):
        raise IllegalTransition(f"{event}: {source or 'no job'} → {target} is not an edge of the lifecycle")


# Decisions on a claimed job


# Outcomes of an attempt


class Completed(msgspec.Struct, frozen=True, gc=False):
    result: str | None = None
    result_artifact: str | None = None


class Raised(msgspec.Struct, frozen=True):
    """The handler raised, timed out, or its process died."""

    error: ErrorEntry


class RetryAsked(msgspec.Struct, frozen=True):
    error: ErrorEntry
    after_micros: int | None = None


class Snoozed(msgspec.Struct, frozen=True):
    for_micros: int
    reason: str | None = None


class Cancelled(msgspec.Struct, frozen=True):
    reason: str | None = None


class Discarded(msgspec.Struct, frozen=True):
    error: ErrorEntry


class GivenBack(msgspec.Struct, frozen=True):
    reason: str


class WaitingForChildren(msgspec.Struct, frozen=True):
    """The job resumes when its children have ended: from the top, or in the function named `join`."""

    awaits: Awaits
    join: str | None = None


class Sleeping(msgspec.Struct, frozen=True):
    """The job resumes from the top at this time. The sleep is recorded as a step of this name."""

    name: str
    until: Instant


class WaitingForEvent(msgspec.Struct, frozen=True):
    """The job resumes from the top when the event has come, or after the timeout. `seen`: see waits.Inbox."""

    awaits: EventWait
    seen: int


_WithoutResult = (
    Raised | RetryAsked | Snoozed | Cancelled | Discarded | GivenBack | WaitingForChildren | Sleeping | WaitingForEvent
)
Outcome = Completed | _WithoutResult


class Said(TypedDict, total=False):
    """What a handler has reported during its run, stored with the outcome."""

    logs: str | None
    log_location: str | None
    metrics: str | None
    artifacts: str | None
    effects: tuple[Effect, ...]
    children: tuple[NewJob, ...]
    staged: Staged | None


def decide(
    job: ClaimedJob,
    outcome: Outcome,
    *,
    now: Instant,
    backoff: Backoff,
    draw: float,
    token: str | None,
    by: str | None,
    **said: Unpack[Said],
) -> Transition:
    """Return the transition that follows from how an attempt ended. `draw` in [0, 1) feeds the jitter."""
    if isinstance(outcome, Completed):  # the only one with all the handler's effects
        return msgspec.structs.replace(complete(job, outcome, now, token, by), **said)
    change = _without_result(job, outcome, now, backoff, draw)
    said.pop("effects", None)
    if change.event not in _RESUMES:
        said.pop("children", None)
        said.pop("staged", None)
    return msgspec.structs.replace(change, token=token, by=by, ran_micros=now - job.started_at, **said)


# The handler comes back to what it has submitted so far: its children are stored with the wait.
_RESUMES = frozenset({Event.WAIT_FOR_CHILDREN, Event.SLEEP, Event.WAIT_FOR_EVENT})


# A member of an enum is looked up by a function of Python's each time: three of them cost half of what follows.
_COMPLETE, _PROCESSING, _COMPLETED = Event.COMPLETE, Status.PROCESSING, Status.COMPLETED


def complete(job: ClaimedJob, outcome: Completed, now: Instant, token: str | None, by: str | None) -> Transition:
    """Return the transition of a job that has a result and reported nothing else, as nearly all do."""
    return Transition(
        job_id=job.job_id,
        event=_COMPLETE,
        source=_PROCESSING,
        target=_COMPLETED,
        attempt=job.attempt,
        token=token,
        kind=(job.job_type, job.queue, job.priority),
        ran_micros=now - job.started_at,
        waited_micros=job.started_at - job.scheduled_for,
        parent_job_id=job.parent_job_id,
        by=by,
        progress=1.0,
        stage="complete",
        result=outcome.result,
        result_artifact=outcome.result_artifact,
    )


def _without_result(
    job: ClaimedJob, outcome: _WithoutResult, now: Instant, backoff: Backoff, draw: float
) -> Transition:
    match outcome:
        case Raised(error):
            return _fail(job, error, now + backoff.delay_micros(job.failures + 1, draw))
        case RetryAsked(error, after_micros):
            delay = backoff.delay_micros(job.failures + 1, draw) if after_micros is None else after_micros
            return _fail(job, error, now + delay)
        case Snoozed(for_micros, reason):
            if job.snoozes >= SNOOZES_MAX:
                error = _own_error(job, now, "SnoozedTooOften", f"snoozed {job.snoozes} times")
                return _fail(job, error, now + backoff.delay_micros(job.failures + 1, draw))
            return _end(
                job,
                Event.SNOOZE,
                Status.SCHEDULED,
                snoozes=job.snoozes + 1,
                scheduled_for=now + for_micros,
                reason=_short(reason),
                suspicion=_cleared(job),
            )
        case GivenBack(reason):
            if job.give_backs >= GIVE_BACKS_MAX:
                error = _own_error(job, now, "GivenBackTooOften", f"given back {job.give_backs} times: {reason}")
                return _fail(job, error, now + backoff.delay_micros(job.failures + 1, draw))
            return _end(
                job,
                Event.GIVE_BACK,
                Status.PENDING,
                give_backs=job.give_backs + 1,
                progress=0.0,
                stage="requeued",
                reason=_short(reason),
            )
        case WaitingForChildren(awaits, join):
            if job.waits >= WAITS_MAX:
                often = f"waited {job.waits} times: does every run submit new children? pass ctx.submit(key=…)"
                error = _own_error(job, now, "WaitedTooOften", often)
                return _fail(job, error, now + backoff.delay_micros(job.failures + 1, draw))
            return _end(
                job,
                Event.WAIT_FOR_CHILDREN,
                Status.WAITING,
                waits=job.waits + 1,
                awaits=awaits,
                join=join,
                suspicion=_cleared(job),
            )
        case Sleeping(name, until):
            return _end(
                job,
                Event.SLEEP,
                Status.SCHEDULED,
                scheduled_for=until,
                details=Slept(name),
                suspicion=_cleared(job),
            )
        case WaitingForEvent(wait, seen):
            return _end(
                job,
                Event.WAIT_FOR_EVENT,
                Status.WAITING,
                awaits=wait,
                join=job.join,
                seen=seen,
                details=Awaited(wait.name, wait.key),
                suspicion=_cleared(job),
            )
        case Cancelled(reason):
            return _end(job, Event.CANCEL, Status.CANCELLED, reason=_short(reason))
        case Discarded(error):
            return _dead(job, Event.DISCARD, error)
        case _:
            assert_never(outcome)


def _fail(job: ClaimedJob, error: ErrorEntry, next_run: Instant) -> Transition:
    """Return a failure: retry at `next_run`, or a dead letter if that was the last attempt."""
    failures = job.failures + 1
    if failures >= job.max_attempts:
        return _dead(job, Event.EXHAUST, error)
    return _end(
        job,
        Event.RETRY,
        Status.RETRYING,
        failures=failures,
        error=error,
        scheduled_for=next_run,
        reason=_headline(error),
        suspicion=_cleared(job),
    )


def _dead(job: ClaimedJob, event: Event, error: ErrorEntry) -> Transition:
    return _end(
        job,
        event,
        Status.FAILED,
        failures=job.failures + 1,
        error=error,
        stage="error",
        reason=_headline(error),
        suspicion=_cleared(job),
    )


def _cleared(job: ClaimedJob) -> int | None:
    """Return what an attempt that came to an end of its own leaves of a suspicion: nothing. It is written only where
    there was one."""
    return 0 if job.suspicion else None


def _end(job: ClaimedJob, event: Event, target: Status, **changes: object) -> Transition:
    return Transition(
        job_id=job.job_id,
        event=event,
        source=Status.PROCESSING,
        target=target,
        attempt=job.attempt,
        kind=(job.job_type, job.queue, job.priority),
        waited_micros=job.started_at - job.scheduled_for,
        parent_job_id=job.parent_job_id,
        **changes,  # type: ignore[arg-type]
    )


def rescue(job: ExpiredClaim, *, lease: Instant, now: Instant, reason: str, by: str | None) -> Transition:
    """Return the transition for an expired claim, whose worker died or stalled. Counts as a failure; the job can run
    again at once, but perhaps not next to others."""
    failures = job.failures + 1
    exhausted = failures >= job.max_attempts
    return Transition(
        job_id=job.job_id,
        event=Event.RESCUE,
        source=Status.PROCESSING,
        target=Status.FAILED if exhausted else Status.RETRYING,
        attempt=job.attempt,
        lease=lease,
        kind=(job.job_type, job.queue, job.priority),
        ran_micros=now - job.started_at,
        waited_micros=job.started_at - job.scheduled_for,
        parent_job_id=job.parent_job_id,
        by=by,
        reason=_short(reason),
        failures=failures,
        scheduled_for=None if exhausted else now,
        progress=0.0,
        stage="error" if exhausted else "requeued",
        error=_own_error(job, now, LEASE_LOST, reason),
        suspicion=suspicion.after_a_loss(job),
    )


# Decisions of editors: people and programs that change a job they do not hold


def cancel(
    job: JobRecord | Node, *, by: str | None, reason: str | None, details: EventDetails | None = None
) -> Transition:
    return _edit(job, Event.CANCEL, Status.CANCELLED, by=by, reason=_short(reason), details=details)


def manual_retry(
    job: JobRecord | Node,
    *,
    now: Instant,
    by: str | None,
    reason: str | None,
    details: EventDetails | None = None,
    forget_steps: bool = False,
    rewait: bool = False,
) -> Transition:
    """Return the transition to a new generation: failures are reset, the attempt continues to count. With `rewait`, the
    job waits for a dependency that also runs again; the store determines whether there is one."""
    return _edit(
        job,
        Event.MANUAL_RETRY,
        Status.PENDING,
        by=by,
        reason=_short(reason),
        details=details,
        failures=0,
        snoozes=0,
        give_backs=0,
        waits=0,
        forget_steps=forget_steps,
        rewait=rewait,
        # The completed one is beyond suspicion; only this path writes it, because completions are many.
        suspicion=0 if job.status is Status.COMPLETED else None,
        scheduled_for=now,
        progress=0.0,
        stage="",
        clear_result=True,
    )


def reschedule(
    job: JobRecord | Node, *, run_at: Instant, now: Instant, by: str | None, reason: str | None
) -> Transition:
    target = Status.SCHEDULED if run_at > now else Status.PENDING
    details = DueTime(to_datetime(run_at))
    return _edit(job, Event.RESCHEDULE, target, by=by, reason=_short(reason), details=details, scheduled_for=run_at)


def reprioritise(job: JobRecord | Node, *, priority: int, by: str | None, reason: str | None) -> Transition:
    """Return the transition to a new priority. A running job continues; the new priority counts when it is queued
    again."""
    details = Priority(priority, job.priority)
    return _edit(job, Event.REPRIORITISE, job.status, by=by, reason=_short(reason), details=details, priority=priority)


def skip_tick(job: JobRecord | Node, *, schedule: str, tick_at: Instant) -> Transition:
    """Return the transition that notes in the history of an active job that a tick of its schedule made none."""
    details = Tick(schedule, to_datetime(tick_at))
    return _edit(job, Event.SKIP_TICK, job.status, by=f"schedule:{schedule}"[:NAME_LENGTH_MAX], details=details)


def update(job: JobRecord, *, payload: str, payload_version: int, by: str | None, reason: str | None) -> Transition:
    """Return the transition of a job that waits to another payload."""
    revision = Revision(payload, payload_version, job.expires_at)
    return _edit(job, Event.UPDATE, job.status, by=by, reason=_short(reason), revision=revision)


def replace(job: JobRecord, new: NewJob, *, now: Instant) -> Transition | None:
    """Return the transition of a job to what a later submit with its dedup key brings: its payload, and when it is due.
    None if it has begun: then the later one is a job of its own. One that waits for a retry keeps the time of that."""
    if job.status in TERMINAL or (job.attempt and job.status is not Status.RETRYING):
        return None
    due = new.scheduled_for
    if new.debounce_micros is not None:
        due = min(due, job.created_at + new.debounce_micros)
    target, due_at = job.status, due
    if job.status in _IN_TIME:
        target = Status.SCHEDULED if due > now else Status.PENDING
    if job.status is Status.RETRYING or (job.status is Status.PENDING and target is Status.PENDING):
        due_at = job.scheduled_for  # it keeps its place
    revision = Revision(new.payload, new.payload_version, None if job.attempt else new.expires_at)
    details = DueTime(to_datetime(due_at)) if due_at != job.scheduled_for else None
    return _edit(
        job, Event.REPLACE, target, by=new.created_by, details=details, scheduled_for=due_at, revision=revision
    )


EXPIRED = "expired"  # the reason of a job that was cancelled because it had not started in time


def expire(job: JobRecord, *, now: Instant, by: str | None) -> Transition | None:
    """Return the transition of a job that has not started in time; None if it has, or may still."""
    if job.expires_at is None or job.expires_at > now or job.status not in EDGES[Event.EXPIRE][0]:
        return None
    return _edit(job, Event.EXPIRE, Status.CANCELLED, by=by, reason=EXPIRED)


def _edit(job: JobRecord | Node, event: Event, target: Status, **changes: object) -> Transition:
    check(event, job.status, target)
    return Transition(
        job_id=job.job_id,
        event=event,
        source=job.status,
        target=target,
        attempt=job.attempt,
        version=job.version,
        kind=(job.job_type, job.queue, job.priority),
        parent_job_id=job.parent_job_id,
        **changes,  # type: ignore[arg-type]
    )


def _own_error(job: ClaimedJob | ExpiredClaim, now: Instant, kind: str, message: str) -> ErrorEntry:
    return ErrorEntry(attempt=job.attempt, at=now, type=kind, message=message)


def _headline(error: ErrorEntry) -> str:
    return _short(f"{error.type}: {error.message}") or error.type


def _short(text: str | None) -> str | None:
    return None if text is None else text[:REASON_LENGTH_MAX]

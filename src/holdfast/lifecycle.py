"""The lifecycle of a job: states, events, edges, and what follows from what happened.

This is the only place that knows them. It is pure: an outcome goes in, a transition comes out; no I/O, no clock,
no randomness of its own. Stores apply transitions; they never invent one. A transition carries the guards under
which it was decided (source state, attempt, and the version, token or lease that the decider saw), and a store
applies it only while they hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypedDict, Unpack, assert_never

import msgspec

from holdfast.clock import Instant, to_datetime
from holdfast.counted import Counted as Counted
from holdfast.counted import also_counted as also_counted
from holdfast.counted import bucket_of as bucket_of
from holdfast.counted import counted as counted
from holdfast.errors import IllegalTransition
from holdfast.limits import GIVE_BACKS_MAX, REASON_LENGTH_MAX, SNOOZES_MAX, WAITS_MAX
from holdfast.newjob import NewJob
from holdfast.retry import Backoff
from holdfast.statuses import ACTIVE as ACTIVE
from holdfast.statuses import TERMINAL as TERMINAL
from holdfast.statuses import Event as Event
from holdfast.statuses import Status as Status
from holdfast.transition import LEASE_LOST
from holdfast.transition import Effect as Effect
from holdfast.transition import ErrorEntry as ErrorEntry
from holdfast.transition import Kind as Kind
from holdfast.transition import Staged as Staged
from holdfast.transition import Transition as Transition
from holdfast.trees import Awaits

_S = Status
# None stands for "no job yet".
EDGES: Mapping[Event, tuple[frozenset[Status | None], frozenset[Status]]] = {
    Event.SUBMIT: (frozenset({None}), frozenset({_S.WAITING, _S.SCHEDULED, _S.PENDING})),
    Event.REUSE: (frozenset({None, _S.WAITING}), frozenset({_S.COMPLETED})),
    Event.RELEASE: (
        frozenset({_S.WAITING}),
        frozenset({_S.PENDING, _S.SCHEDULED, _S.CANCELLED, _S.FAILED}),
    ),
    Event.DUE: (frozenset({_S.SCHEDULED, _S.RETRYING}), frozenset({_S.PENDING})),
    Event.CLAIM: (frozenset({_S.PENDING}), frozenset({_S.PROCESSING})),
    Event.COMPLETE: (frozenset({_S.PROCESSING}), frozenset({_S.COMPLETED})),
    Event.RETRY: (frozenset({_S.PROCESSING}), frozenset({_S.RETRYING})),
    Event.EXHAUST: (frozenset({_S.PROCESSING}), frozenset({_S.FAILED})),
    Event.DISCARD: (frozenset({_S.PROCESSING}), frozenset({_S.FAILED})),
    Event.SNOOZE: (frozenset({_S.PROCESSING}), frozenset({_S.SCHEDULED})),
    Event.GIVE_BACK: (frozenset({_S.PROCESSING}), frozenset({_S.PENDING})),
    Event.WAIT_FOR_CHILDREN: (frozenset({_S.PROCESSING}), frozenset({_S.WAITING})),
    Event.RESCUE: (frozenset({_S.PROCESSING}), frozenset({_S.RETRYING, _S.FAILED})),
    Event.RESCHEDULE: (frozenset({_S.PENDING, _S.SCHEDULED}), frozenset({_S.SCHEDULED, _S.PENDING})),
    Event.REPRIORITISE: (frozenset(ACTIVE), frozenset(ACTIVE)),
    Event.CANCEL: (frozenset(ACTIVE), frozenset({_S.CANCELLED})),
    Event.MANUAL_RETRY: (frozenset(TERMINAL), frozenset({_S.PENDING, _S.WAITING})),
}


def allowed(event: Event, source: Status | None, target: Status) -> bool:
    sources, targets = EDGES[event]
    if event is Event.REPRIORITISE and source is not target:
        return False  # it changes where the job stands in line, never its state
    return source in sources and target in targets


def edges() -> list[tuple[Event, Status | None, Status]]:
    """Every change there is."""
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


class Standing(Protocol):
    """What a decision needs to know of a claimed job."""

    @property
    def job_id(self) -> str: ...
    @property
    def job_type(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def scheduled_for(self) -> Instant: ...
    @property
    def started_at(self) -> Instant: ...
    @property
    def attempt(self) -> int: ...
    @property
    def failures(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def snoozes(self) -> int: ...
    @property
    def give_backs(self) -> int: ...
    @property
    def parent_job_id(self) -> str | None: ...


class Entered(Standing, Protocol):
    """And one whose handler was entered."""

    @property
    def waits(self) -> int: ...


# What can come of an attempt


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
    costs: bool = True  # not where its worker puts it off, unbegun: see suspects.py


class Cancelled(msgspec.Struct, frozen=True):
    reason: str | None = None


class Discarded(msgspec.Struct, frozen=True):
    error: ErrorEntry


class GivenBack(msgspec.Struct, frozen=True):
    reason: str


class WaitingForChildren(msgspec.Struct, frozen=True):
    """It goes on when its children have ended: from the top, or in the function named `join`."""

    awaits: Awaits
    join: str | None = None


_WithoutResult = Raised | RetryAsked | Snoozed | Cancelled | Discarded | GivenBack | WaitingForChildren
Outcome = Completed | _WithoutResult


class Said(TypedDict, total=False):
    """What a handler has said about its run, as it is stored with the outcome."""

    logs: str | None
    log_location: str | None
    metrics: str | None
    artifacts: str | None
    effects: tuple[Effect, ...]
    children: tuple[NewJob, ...]
    staged: Staged | None


def decide(
    job: Entered,
    outcome: Outcome,
    *,
    now: Instant,
    backoff: Backoff,
    draw: float,
    token: str | None,
    by: str | None,
    **said: Unpack[Said],
) -> Transition:
    """The transition that follows from how an attempt ended. `draw` in [0, 1) feeds the jitter."""
    if isinstance(outcome, Completed):  # nearly every outcome, and the only one with all the handler's effects
        return Transition(
            job_id=job.job_id,
            event=Event.COMPLETE,
            source=Status.PROCESSING,
            target=Status.COMPLETED,
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
            **said,
        )
    change = _without_result(job, outcome, now, backoff, draw)
    said.pop("effects", None)
    if change.event is not Event.WAIT_FOR_CHILDREN:
        said.pop("children", None)
        said.pop("staged", None)
    return msgspec.structs.replace(change, token=token, by=by, ran_micros=now - job.started_at, **said)


def _without_result(job: Entered, outcome: _WithoutResult, now: Instant, backoff: Backoff, draw: float) -> Transition:
    match outcome:
        case Raised(error):
            return _fail(job, error, now + backoff.delay_micros(job.failures + 1, draw))
        case RetryAsked(error, after_micros):
            delay = backoff.delay_micros(job.failures + 1, draw) if after_micros is None else after_micros
            return _fail(job, error, now + delay)
        case Snoozed(for_micros, reason, costs):
            if costs and job.snoozes >= SNOOZES_MAX:
                error = _own_error(job, now, "SnoozedTooOften", f"snoozed {job.snoozes} times")
                return _fail(job, error, now + backoff.delay_micros(job.failures + 1, draw))
            return _end(
                job,
                Event.SNOOZE,
                Status.SCHEDULED,
                snoozes=job.snoozes + costs,
                scheduled_for=now + for_micros,
                reason=_short(reason),
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
                often = f"waited {job.waits} times: does every run make new children? give ctx.submit(key=…)"
                error = _own_error(job, now, "WaitedTooOften", often)
                return _fail(job, error, now + backoff.delay_micros(job.failures + 1, draw))
            return _end(job, Event.WAIT_FOR_CHILDREN, Status.WAITING, waits=job.waits + 1, awaits=awaits, join=join)
        case Cancelled(reason):
            return _end(job, Event.CANCEL, Status.CANCELLED, reason=_short(reason))
        case Discarded(error):
            return _dead(job, Event.DISCARD, error)
        case _:
            assert_never(outcome)


def _fail(job: Standing, error: ErrorEntry, next_run: Instant) -> Transition:
    """A failure: again at `next_run`, or dead when that was the last attempt."""
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
    )


def _dead(job: Standing, event: Event, error: ErrorEntry) -> Transition:
    return _end(
        job, event, Status.FAILED, failures=job.failures + 1, error=error, stage="error", reason=_headline(error)
    )


def _end(job: Standing, event: Event, target: Status, **changes: object) -> Transition:
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


def rescue(job: Standing, *, lease: Instant, now: Instant, reason: str, by: str | None) -> Transition:
    """The claim ran out: its worker died or stalled. Counted as a failure; runnable again at once."""
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
    )


# Decisions of editors: people and programs that change a job they do not hold


class Editable(Protocol):
    @property
    def job_id(self) -> str: ...
    @property
    def job_type(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def priority(self) -> int: ...
    @property
    def status(self) -> Status: ...
    @property
    def attempt(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def parent_job_id(self) -> str | None: ...


def cancel(job: Editable, *, by: str | None, reason: str | None) -> Transition:
    return _edit(job, Event.CANCEL, Status.CANCELLED, by=by, reason=_short(reason))


def manual_retry(
    job: Editable, *, now: Instant, by: str | None, reason: str | None, rewait: bool = False
) -> Transition:
    """A new generation: the budget starts anew, the attempt goes on counting. `rewait`: where something that it depends
    on runs again too, it waits for that; the store sees whether."""
    return _edit(
        job,
        Event.MANUAL_RETRY,
        Status.PENDING,
        by=by,
        reason=_short(reason),
        failures=0,
        snoozes=0,
        give_backs=0,
        waits=0,
        rewait=rewait,
        scheduled_for=now,
        progress=0.0,
        stage="",
        clear_result=True,
    )


def reschedule(job: Editable, *, run_at: Instant, now: Instant, by: str | None, reason: str | None) -> Transition:
    target = Status.SCHEDULED if run_at > now else Status.PENDING
    why = _short(reason) or moved_to(run_at)
    return _edit(job, Event.RESCHEDULE, target, by=by, reason=why, scheduled_for=run_at)


def moved_to(run_at: Instant) -> str:
    """What history says of a new time for which nobody gave a reason."""
    return f"for {to_datetime(run_at):%Y-%m-%d %H:%M:%S} UTC"


def reprioritise(job: Editable, *, priority: int, by: str | None, reason: str | None) -> Transition:
    """A running job keeps running; the new priority counts when it has to wait again."""
    why = _short(reason) or f"priority {priority}, was {job.priority}"
    return _edit(job, Event.REPRIORITISE, job.status, by=by, reason=why, priority=priority)


def _edit(job: Editable, event: Event, target: Status, **changes: object) -> Transition:
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


def _own_error(job: Standing, now: Instant, kind: str, message: str) -> ErrorEntry:
    return ErrorEntry(attempt=job.attempt, at=now, type=kind, message=message)


def _headline(error: ErrorEntry) -> str:
    return _short(f"{error.type}: {error.message}") or error.type


def _short(text: str | None) -> str | None:
    return None if text is None else text[:REASON_LENGTH_MAX]

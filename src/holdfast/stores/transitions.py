"""What every engine asks of transitions, before it applies them and after. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors import IllegalTransition
from holdfast.lifecycle import TERMINAL, Event, Status, Transition, check
from holdfast.store.types import Hold, Signal, Verdict

Standing = tuple[str, int, str | None]  # how a job stands: status, attempt, token


def check_all(transitions: Iterable[Transition]) -> None:
    for transition in transitions:
        if transition.event is Event.CLAIM:
            raise IllegalTransition("a job is claimed by claim, which gives it a token and a lease")
        check(transition.event, transition.source, transition.target)


def is_plain_completion(transition: Transition) -> bool:
    """What nearly every settlement is: a result and nothing else."""
    return (
        transition.event is Event.COMPLETE
        and transition.token is not None
        and transition.version is None
        and transition.lease is None
        and transition.logs is None
        and transition.log_location is None
        and transition.metrics is None
        and transition.artifacts is None
        and not transition.effects
        and not transition.children
        and transition.staged is None
        and transition.result_artifact is None
        and transition.reason is None
    )


def left_their_place(applied: Iterable[Transition]) -> list[str]:
    """The jobs that stand in line no more, or elsewhere: one that is more urgent now, or less, may change places with
    another of its rate key."""
    return [
        t.job_id
        for t in applied
        if t.source is Status.PENDING and (t.target is not Status.PENDING or t.event is Event.REPRIORITISE)
    ]


def signals_of(applied: Iterable[Transition]) -> set[Signal]:
    signals: set[Signal] = set()
    for t in applied:
        if t.target in TERMINAL:
            signals.add(Signal.ENDED)
        if t.event is Event.REPRIORITISE:
            continue
        if t.target is Status.PENDING:
            signals.add(Signal.READY)
        elif t.target in (Status.SCHEDULED, Status.RETRYING):
            signals.add(Signal.DUE)
        if t.source is Status.PROCESSING and t.token is None and t.target is not Status.PROCESSING:
            signals.add(Signal.STOPPED)
    return signals


def held(hold: Hold, standing: Standing | None) -> Verdict:
    """Whether a claim still holds."""
    if standing is None:
        return Verdict.GONE
    holds = standing == (Status.PROCESSING.value, hold.attempt, hold.token)
    return Verdict.APPLIED if holds else Verdict.STALE

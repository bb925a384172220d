"""How jobs wait for one another: for those they depend on, and for their children. Pure.

Neither needs to know who has ended how. A job that is let go leaves `waiting` at once, so what is left unmet, together
with the end that is counted now, decides every rule. A parent that waits for its children is judged by numbers on its
own record, once none of them is open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import assert_never

import msgspec

from holdfast.clock import Instant
from holdfast.statuses import ACTIVE, TERMINAL, Status

Outcomes = Mapping[Status, int]  # how many stand how


class TriggerRule(StrEnum):
    ALL_SUCCESS = "all_success"  # every one completed
    ALL_DONE = "all_done"  # every one ended, however
    ONE_SUCCESS = "one_success"  # one completed: starts at once, the others are not waited for
    NONE_FAILED = "none_failed"  # every one ended, none failed; a cancelled one counts as left out


# Dependencies


class Began(msgspec.Struct, frozen=True):
    """How a job begins. `then`: it is released in the same commit, by what had ended before it came."""

    status: Status
    unmet: int = 0  # 0 unless it stays waiting
    then: Status | None = None


def began(*, rule: TriggerRule, outcomes: Outcomes, on_failure: str, scheduled_for: Instant, now: Instant) -> Began:
    """How a job begins, from how those it depends on stand. One that it only joins counts as waiting."""
    standing = again(rule=rule, outcomes=outcomes)
    if standing.blocked:
        return Began(Status.WAITING, then=_broken(on_failure))
    if standing.unmet:
        return Began(Status.WAITING, standing.unmet)
    return Began(_ready(scheduled_for, now))


def breaker(rule: TriggerRule, standing: Mapping[str, Status]) -> str:
    """Of those whose end ended a job as it came: the first that its rule does not bear."""
    badly = [Status.FAILED] if rule is TriggerRule.NONE_FAILED else [Status.FAILED, Status.CANCELLED]
    return next(job_id for job_id, status in standing.items() if status in badly)


def released(
    *, rule: TriggerRule, outcome: Status | None, unmet: int, on_failure: str, scheduled_for: Instant, now: Instant
) -> Status | None:
    """What becomes of a waiting job when one that it depends on has ended; None: it waits on. `unmet` is what is left
    after this one. `outcome` None: what was counted decides nothing, as an identical job that it had joined and that
    came to nothing, or the hold under which its edges were registered."""
    match rule:
        case TriggerRule.ALL_SUCCESS:
            broken, ready = outcome in (Status.FAILED, Status.CANCELLED), unmet == 0
        case TriggerRule.NONE_FAILED:
            broken, ready = outcome is Status.FAILED, unmet == 0
        case TriggerRule.ALL_DONE:
            broken, ready = False, unmet == 0
        case TriggerRule.ONE_SUCCESS:
            ready = outcome is Status.COMPLETED
            broken = unmet == 0 and not ready  # an earlier success would have let it go
        case _:
            assert_never(rule)
    if broken:
        return _broken(on_failure)
    return _ready(scheduled_for, now) if ready else None


class Again(msgspec.Struct, frozen=True):
    """Whether a job may run, for the first time or again. `unmet`: how many it has to wait for; `blocked`: what has
    ended forbids it."""

    blocked: bool = False
    unmet: int = 0


def again(*, rule: TriggerRule, outcomes: Outcomes) -> Again:
    active = sum(count for status, count in outcomes.items() if status in ACTIVE)
    completed, failed, cancelled = (
        outcomes.get(status, 0) for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED)
    )
    match rule:
        case TriggerRule.ALL_SUCCESS:
            blocked = failed + cancelled > 0
        case TriggerRule.NONE_FAILED:
            blocked = failed > 0
        case TriggerRule.ALL_DONE:
            blocked = False
        case TriggerRule.ONE_SUCCESS:
            if completed:
                return Again()
            blocked = active == 0 and failed + cancelled > 0
        case _:
            assert_never(rule)
    return Again(blocked=True) if blocked else Again(unmet=active)


def _broken(on_failure: str) -> Status:
    return Status.FAILED if on_failure == "fail" else Status.CANCELLED


def _ready(scheduled_for: Instant, now: Instant) -> Status:
    return Status.SCHEDULED if scheduled_for > now else Status.PENDING


# Children


class Awaits(msgspec.Struct, frozen=True):
    """What a parent waits for of its children, and what becomes of it where they do not bring it."""

    rule: TriggerRule  # not one_success: a parent goes on when its tree is quiet
    on_failure: str  # fail, cancel

    def __str__(self) -> str:
        """As it is stored."""
        return f"{self.rule} {self.on_failure}"

    @classmethod
    def parse(cls, stored: str) -> Awaits:
        rule, on_failure = stored.split(" ")
        return cls(TriggerRule(rule), on_failure)


class Brood(msgspec.Struct, frozen=True):
    """A parent's children: how many, how many have not ended, how many ended badly. Or what a change adds to these."""

    children: int = 0
    open: int = 0
    failed: int = 0
    cancelled: int = 0

    def __str__(self) -> str:
        """For people, once all have ended."""
        badly = [f"{count} {how}" for count, how in ((self.failed, "failed"), (self.cancelled, "cancelled")) if count]
        return f"{self.children} {'child' if self.children == 1 else 'children'} ended" + (
            f", {' and '.join(badly)}" if badly else ""
        )

    def __add__(self, more: Brood) -> Brood:
        return Brood(
            self.children + more.children,
            self.open + more.open,
            self.failed + more.failed,
            self.cancelled + more.cancelled,
        )


def joined(awaits: Awaits, brood: Brood) -> Status | None:
    """What becomes of a parent that waits, once its children stand like this; None: it waits on. Judged when the last
    has ended, so that the tree is quiet before its parent goes on or fails."""
    if brood.open > 0:
        return None
    match awaits.rule:
        case TriggerRule.ALL_SUCCESS:
            broken = brood.failed + brood.cancelled > 0
        case TriggerRule.NONE_FAILED:
            broken = brood.failed > 0
        case TriggerRule.ALL_DONE:
            broken = False
        case TriggerRule.ONE_SUCCESS:
            broken = 0 < brood.children == brood.failed + brood.cancelled
        case _:
            assert_never(awaits.rule)
    return _broken(awaits.on_failure) if broken else Status.PENDING


def moved(source: Status | None, target: Status) -> Brood:
    """What a child's change adds to its parent's numbers. A `source` of None: it was not there before."""
    return Brood(
        children=int(source is None),
        open=int(target not in TERMINAL) - int(source is not None and source not in TERMINAL),
        failed=int(target is Status.FAILED) - int(source is Status.FAILED),
        cancelled=int(target is Status.CANCELLED) - int(source is Status.CANCELLED),
    )


# Many at once


class Cycle(Exception):
    """Jobs of a batch wait for one another. `path`: their positions, each waits for the next, the last is the first."""

    def __init__(self, path: Sequence[int]) -> None:
        super().__init__(" → ".join(map(str, path)))
        self.path = tuple(path)


def order(batch: Sequence[tuple[str, Sequence[str]]]) -> list[int]:
    """Positions such that whoever needs another of the batch comes after it; what is in order already stays so. Each
    of the batch is an id, and the ids that it needs: what it depends on, and its parent."""
    place: dict[str, int] = {}
    for position, (job_id, _) in enumerate(batch):
        place.setdefault(job_id, position)
    placed: dict[int, None] = {}
    for position in range(len(batch)):
        if position not in placed:
            _place(batch, place, placed, position)
    return list(placed)


def _place(
    batch: Sequence[tuple[str, Sequence[str]]], place: Mapping[str, int], placed: dict[int, None], first: int
) -> None:
    """Depth first, without recursion: a chain may be as long as the batch."""
    path = {first: iter(batch[first][1])}
    while path:
        position, needs = next(reversed(path.items()))
        needed = next((place[job_id] for job_id in needs if job_id in place and place[job_id] not in placed), None)
        if needed is None:
            placed[position] = None
            del path[position]
        elif needed in path:
            steps = list(path)
            raise Cycle([*steps[steps.index(needed) :], needed])
        else:
            path[needed] = iter(batch[needed][1])

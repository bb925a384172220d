"""Decides when waiting jobs proceed: trigger rules of dependencies, parents that wait for children. Pure.

No decision needs to know which dependency ended how. A released job leaves `waiting` at once, so the number of unmet
dependencies, together with the end being counted now, decides every rule. A parent that waits for its children is
judged by counts on its own record, once none of them is open. `Broods` collects changes of these counts within a
transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import assert_never

import msgspec

from backstay.clock import Instant
from backstay.core.states import ACTIVE, TERMINAL, Status

Outcomes = Mapping[Status, int]  # number of dependencies by status


class TriggerRule(StrEnum):
    ALL_SUCCESS = "all_success"  # all completed
    ALL_DONE = "all_done"  # all ended, with any outcome
    ONE_SUCCESS = "one_success"  # one completed: starts at once, without waiting for the others
    ONE_FAILED = "one_failed"  # one failed: starts at once, to clean up or to tell of it
    NONE_FAILED = "none_failed"  # all ended and none failed; cancelled ones are ignored


# Dependencies


class Began(msgspec.Struct, frozen=True):
    """The first state of a job. `then` is set if dependencies that ended before the submit release it in the same
    commit."""

    status: Status
    unmet: int = 0  # 0 unless it stays waiting
    then: Status | None = None


def began(*, rule: TriggerRule, outcomes: Outcomes, on_failure: str, scheduled_for: Instant, now: Instant) -> Began:
    """Return the first state of a job from the outcomes of its dependencies. An identical job that it joins counts as
    waiting."""
    standing = again(rule=rule, outcomes=outcomes)
    if standing.blocked:
        return Began(Status.WAITING, then=_broken(on_failure))
    if standing.unmet:
        return Began(Status.WAITING, standing.unmet)
    return Began(_ready(scheduled_for, now))


def breaker(rule: TriggerRule, standing: Mapping[str, Status]) -> str:
    """Return the first dependency whose outcome violates the trigger rule and ended the job as it was submitted."""
    match rule:
        case TriggerRule.NONE_FAILED:
            badly = [Status.FAILED]
        case TriggerRule.ONE_FAILED:
            badly = [Status.COMPLETED, Status.CANCELLED]
        case _:
            badly = [Status.FAILED, Status.CANCELLED]
    return next(job_id for job_id, status in standing.items() if status in badly)


def released(
    *, rule: TriggerRule, outcome: Status | None, unmet: int, on_failure: str, scheduled_for: Instant, now: Instant
) -> Status | None:
    """Return the new state of a waiting job after one of its dependencies has ended; None if it continues to wait.
    `unmet` is the number that remain after this one. `outcome` is None if what was counted decides nothing: an
    identical job that it had joined and that did not complete, or the hold under which its edges were registered."""
    match rule:
        case TriggerRule.ALL_SUCCESS:
            broken, ready = outcome in (Status.FAILED, Status.CANCELLED), unmet == 0
        case TriggerRule.NONE_FAILED:
            broken, ready = outcome is Status.FAILED, unmet == 0
        case TriggerRule.ALL_DONE:
            broken, ready = False, unmet == 0
        case TriggerRule.ONE_SUCCESS:
            ready = outcome is Status.COMPLETED
            broken = unmet == 0 and not ready  # an earlier success would have released it
        case TriggerRule.ONE_FAILED:
            ready = outcome is Status.FAILED
            broken = unmet == 0 and not ready
        case _:
            assert_never(rule)
    if broken:
        return _broken(on_failure)
    return _ready(scheduled_for, now) if ready else None


class Again(msgspec.Struct, frozen=True):
    """Whether a job may run, for the first time or again. `unmet`: how many dependencies it has to wait for; `blocked`:
    a dependency has ended in a way that its rule forbids."""

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
        case TriggerRule.ONE_FAILED:
            if failed:
                return Again()
            blocked = active == 0 and completed + cancelled > 0
        case _:
            assert_never(rule)
    return Again(blocked=True) if blocked else Again(unmet=active)


def _broken(on_failure: str) -> Status:
    return Status.FAILED if on_failure == "fail" else Status.CANCELLED


def _ready(scheduled_for: Instant, now: Instant) -> Status:
    return Status.SCHEDULED if scheduled_for > now else Status.PENDING


# Children


class Awaits(msgspec.Struct, frozen=True, tag_field="for", tag="children"):
    """The outcome of its children that a parent waits for, and how it ends if they have another."""

    rule: TriggerRule  # not one_success or one_failed: a parent resumes once all children have ended
    on_failure: str  # fail, cancel

    @property
    def stored(self) -> str:
        """The same as JSON text, as it is stored."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def of(stored: str) -> Awaits:
        return _awaits.decode(stored)


_awaits = msgspec.json.Decoder(Awaits)


class Brood(msgspec.Struct, frozen=True):
    """Counts of a parent's children: all, not ended, failed or cancelled. Also used for changes of these counts."""

    children: int = 0
    open: int = 0
    failed: int = 0
    cancelled: int = 0

    def __str__(self) -> str:
        """Describe the outcome, once all have ended."""
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
    """Return the new state of a parent that waits for children with these counts; None if it continues to wait. Decided
    when the last child has ended, so that none runs when the parent resumes or fails."""
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
        case TriggerRule.ONE_FAILED:
            broken = brood.children > 0 and brood.failed == 0
        case _:
            assert_never(awaits.rule)
    return _broken(awaits.on_failure) if broken else Status.PENDING


def moved(source: Status | None, target: Status) -> Brood:
    """Return the change of the parent's counts when a child changes state. A `source` of None means that the child is
    new."""
    return Brood(
        children=int(source is None),
        open=int(target not in TERMINAL) - int(source is not None and source not in TERMINAL),
        failed=int(target is Status.FAILED) - int(source is Status.FAILED),
        cancelled=int(target is Status.CANCELLED) - int(source is Status.CANCELLED),
    )


# Many at once


class Cycle(Exception):
    """Jobs of a batch depend on one another in a cycle. `path` lists their positions: each waits for the next, and the
    last is the first."""

    def __init__(self, path: Sequence[int]) -> None:
        super().__init__(" → ".join(map(str, path)))
        self.path = tuple(path)


def order(batch: Sequence[tuple[str, Sequence[str]]]) -> list[int]:
    """Return the positions in an order in which each job follows the jobs of the batch that it needs; an order that is
    right already stays as it is. Each entry is an id and the ids that it needs: its dependencies and its parent."""
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
    """Sort depth first, without recursion: a chain can be as long as the batch."""
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


class Broods(dict[str, Brood]):
    """Changes of child counts by parent, written once for each: a row that changes with every child is read again each
    time."""

    __slots__ = ()

    def add(self, parent: str | None, change: Brood) -> None:
        """Add a change; ignored for a job without a parent. A change of zero still has the parent checked with the
        others."""
        if parent is not None:
            self[parent] = self.get(parent, Brood()) + change

    def take(self) -> dict[str, Brood]:
        changes = dict(self)
        self.clear()
        return changes

"""Decided changes, packed into commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.lifecycle import Event, Transition, also_counted, bucket_of
from holdfast.stores.dynamodb import gates, moving, plan
from holdfast.stores.dynamodb.commit import Commit, Write
from holdfast.stores.dynamodb.moving import Moved
from holdfast.stores.transitions import signals_of
from holdfast.trees import Brood

_NOTHING = Brood()


class Change(msgspec.Struct, frozen=True):
    """A transition on its way into a commit."""

    position: int
    t: Transition
    moved: Moved

    @property
    def parent(self) -> str | None:
        """Whose numbers it changes."""
        parent: str | None = self.moved.item.get("parent_job_id")
        return None if parent is None or self.moved.brood == _NOTHING else parent

    @property
    def brings(self) -> bool:
        """Whether children come with it."""
        return bool(self.t.children) or self.t.staged is not None

    @property
    def goes_alone(self) -> bool:
        ends_for_others = self.moved.ended and bool(self.moved.was.get("awaited"))
        return self.t.event is Event.MANUAL_RETRY or ends_for_others or self.brings

    def into(self, commit: Commit) -> None:
        commit.write(*self.writes())
        self.tell(commit)

    def writes(self) -> list[Write]:
        return [
            moving.written(self.moved),
            *(gates.leave(self.moved.was) if self.moved.freed else ()),
            *(plan.latest(self.moved.item) if self.moved.ended else ()),
        ]

    def tell(self, commit: Commit) -> None:
        """What its commit counts and signals."""
        commit.signals |= signals_of([self.t])
        if self.moved.item["status"] != self.t.target:  # it waited for children of which none was open, and went on
            commit.signals |= plan.signals(self.moved.item)
            if self.moved.counted is not None:
                commit.count(self.t.kind, self.moved.counted)
        elif self.moved.counted is not None:
            t, outcome = self.t, self.moved.counted
            bucket = bucket_of(outcome, t.source, t.ran_micros, t.waited_micros)
            commit.count(t.kind, outcome, 1, t.ran_micros, t.waited_micros, bucket)
            if (beside := also_counted(t.event)) is not None:
                commit.count(t.kind, beside)


class Pack:
    """Changes of one commit, and the parents on which they count."""

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.changes: list[Change] = []
        self.parents: dict[str, None] = {}

    def takes(self, change: Change) -> bool:
        """Each parent is an item, and perhaps a mark."""
        parents = len(self.parents) + (change.parent is not None and change.parent not in self.parents)
        return self.commit.takes(*change.writes(), spare=2 * parents)

    def add(self, change: Change) -> None:
        self.changes.append(change)
        change.into(self.commit)
        if change.parent is not None:
            self.parents[change.parent] = None


def packed(changes: Sequence[Change], new_commit: Callable[[], Commit]) -> list[list[Pack]]:
    """Rounds of packs: those of a round may be committed at once, because no parent is in two of them."""
    rounds: list[list[Pack]] = []
    latest: dict[str, tuple[int, Pack]] = {}  # by parent, where the last of its children was put
    for change in sorted(changes, key=lambda each: each.parent or ""):
        number, pack = latest.get(change.parent, (-1, None)) if change.parent is not None else (-1, None)
        if pack is None or not pack.takes(change):
            number += 1
            pack = _open_pack(rounds, number, change, new_commit)
        pack.add(change)
        if change.parent is not None:
            latest[change.parent] = (number, pack)
    return rounds


def _open_pack(rounds: list[list[Pack]], number: int, change: Change, new_commit: Callable[[], Commit]) -> Pack:
    """The last of this round, or a new one where it is full."""
    if number == len(rounds):
        rounds.append([])
    packs = rounds[number]
    if not packs or not packs[-1].takes(change):
        packs.append(Pack(new_commit()))
    return packs[-1]

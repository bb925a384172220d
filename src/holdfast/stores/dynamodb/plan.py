"""Moves of several jobs on their way into one commit, with all that follows from each: counters, signals, marks, and
what they add to the numbers of their parents."""

from __future__ import annotations

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import Counted, Kind, Status
from holdfast.store.types import Signal
from holdfast.stores.dynamodb import bodies, items, keys, moving, outbox
from holdfast.stores.dynamodb.commit import Commit, Write, put
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.moving import Moved
from holdfast.stores.dynamodb.outbox import Mark, MarkKind
from holdfast.stores.dynamodb.values import Item
from holdfast.trees import Brood

_NOTHING = Brood()


class Plan:
    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.texts: list[Item] = []  # bodies, to be put before the commit
        self.counted: list[tuple[Kind, Counted, int]] = []
        self.signals: set[Signal] = set()
        self.marks: list[Mark] = []  # of what follows in commits of its own
        self.broods: dict[str, Brood] = {}  # by parent, what its children change by this
        self.moved: dict[str, Item] = {}  # jobs as this makes them

    def move(self, moved: Moved, now: Instant) -> None:
        """One that moves by itself, not by a transition."""
        if moved.item is moved.was:
            return
        item, texts = bodies.spill(items.fit(moved.item))
        self.texts += texts
        moved = msgspec.structs.replace(moved, item=item)
        self.writes.append(moving.written(moved))
        if moved.ended:
            self.writes += latest(item)
        self.signals |= signals(item)
        kind = (item["job_type"], item["queue"], item["priority"])
        if moved.counted is not None:
            self.counted.append((kind, moved.counted, 0))
        if moved.saved_micros is not None:
            self.counted.append((kind, Counted.REUSED, moved.saved_micros))
        if moved.ended and moved.was.get("awaited"):
            self.mark(outbox.new_mark(MarkKind.ENDED, item["job_id"], now))
        self.follow(moved)

    def follow(self, moved: Moved) -> None:
        """What a move that is written elsewhere means to its parent."""
        item = moved.item
        self.moved[item["job_id"]] = item
        if (parent := item.get("parent_job_id")) is not None:
            self.count(parent, moved.brood)

    def count(self, parent: str, brood: Brood) -> None:
        total = self.broods.get(parent, _NOTHING) + brood
        if total == _NOTHING:
            self.broods.pop(parent, None)
        else:
            self.broods[parent] = total

    def mark(self, mark: Mark) -> None:
        self.marks.append(mark)
        self.writes.append(outbox.written(mark))

    def into(self, commit: Commit) -> None:
        commit.write(*self.writes)
        commit.signals |= self.signals
        for kind, outcome, ran in self.counted:
            commit.count(kind, outcome, ran=ran)


def signals(item: Item) -> set[Signal]:
    """Of a job that has come to stand like this."""
    match Status(item["status"]):
        case Status.PENDING:
            return {Signal.READY}
        case Status.SCHEDULED:
            return {Signal.DUE}
        case Status.COMPLETED | Status.FAILED | Status.CANCELLED:
            return {Signal.ENDED}
        case _:
            return set()


def latest(item: Item) -> list[Write]:
    """The pointer to a job that completes and has rows: it is the latest of its subject and type."""
    subject = item.get("subject", "" if "subject" in item.get("empty", ()) else None)
    if subject is None or item["status"] != Status.COMPLETED or "tables" not in item:
        return []
    pk, sk = keys.latest(subject, item["job_type"])
    return [put(Table.RECORDS, {"pk": pk, "sk": sk, "job_id": item["job_id"], "completed_at": item["completed_at"]})]

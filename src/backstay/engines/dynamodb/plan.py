"""Packs decided changes of jobs into commits, with their counters, signals, marks and changes to parents.

    a child ends ──▶ its parent does not wait for it: counts alone
                 ├─▶ it waits, and other children are open: counts, if others still are
                 ├─▶ it waits, and this was the last: it proceeds, in the same commit
                 └─▶ … but what it waited for failed: counts and a mark, from which it is ended separately

The last has a commit of its own because an end has dependents, and a parent above it. Counts have no version, so that a
thousand children that end one after another do not conflict; each write is conditional on what the decision used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from backstay.clock import Instant
from backstay.core.dependencies import Brood
from backstay.core.records import Kind, Signal, Transition
from backstay.core.states import Counted, Event, Status, also_counted, bucket_of
from backstay.engines.dynamodb import admission, items, outbox, schema, transitions
from backstay.engines.dynamodb.commit import Commit
from backstay.engines.dynamodb.expressions import Condition, Write, above, absent, add, equals, present, put
from backstay.engines.dynamodb.outbox import Mark, MarkKind
from backstay.engines.dynamodb.schema import Item, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.transitions import Moved
from backstay.engines.dynamodb.transport import Lane
from backstay.engines.sql_rows import signals_of

_NOTHING = Brood()


class Plan:
    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.texts: list[Item] = []  # bodies, written before the commit
        self.counted: list[tuple[Kind, Counted, int]] = []
        self.signals: set[Signal] = set()
        self.marks: list[Mark] = []  # marks of work that follows in separate commits
        self.broods: dict[str, Brood] = {}  # changed child counts, by parent
        self.moved: dict[str, Item] = {}  # jobs as changed by this plan

    def move(self, moved: Moved, now: Instant) -> None:
        """Add a change that is not caused by a transition."""
        if moved.item is moved.was:
            return
        item, texts = items.spill(items.fit(moved.item))
        self.texts += texts
        moved = msgspec.structs.replace(moved, item=item)
        self.writes.append(transitions.written(moved))
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
        """Add the effect on its parent of a change that is written elsewhere."""
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
    """Return the signals for a job that has reached this state."""
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
    """Return the write of the pointer to the latest completed job with rows of its subject and type."""
    subject = item.get("subject", "" if "subject" in item.get("empty", ()) else None)
    if subject is None or item["status"] != Status.COMPLETED or "tables" not in item:
        return []
    pk, sk = schema.latest(subject, item["job_type"])
    return [put(Table.RECORDS, {"pk": pk, "sk": sk, "job_id": item["job_id"], "completed_at": item["completed_at"]})]


class Change(msgspec.Struct, frozen=True):
    """A transition that is to be committed."""

    position: int
    t: Transition
    moved: Moved

    @property
    def parent(self) -> str | None:
        """The parent whose counts it changes."""
        parent: str | None = self.moved.item.get("parent_job_id")
        return None if parent is None or self.moved.brood == _NOTHING else parent

    @property
    def brings(self) -> bool:
        """Whether it has children to store."""
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
            transitions.written(self.moved),
            *(admission.leave(self.moved.was) if self.moved.freed else ()),
            *(latest(self.moved.item) if self.moved.ended else ()),
        ]

    def tell(self, commit: Commit) -> None:
        """Add the counters and signals of its commit."""
        commit.signals |= signals_of([self.t])
        # it waited for children, none of which was open, and proceeded at once
        if self.moved.item["status"] != self.t.target:
            commit.signals |= signals(self.moved.item)
            if self.moved.counted is not None:
                commit.count(self.t.kind, self.moved.counted)
        elif self.moved.counted is not None:
            t, outcome = self.t, self.moved.counted
            bucket = bucket_of(outcome, t.source, t.ran_micros, t.waited_micros)
            commit.count(t.kind, outcome, 1, t.ran_micros, t.waited_micros, bucket)
            if (beside := also_counted(t.event)) is not None:
                commit.count(t.kind, beside)


class Pack:
    """The changes of one commit, and the parents whose counts they change."""

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.changes: list[Change] = []
        self.parents: dict[str, None] = {}

    def takes(self, change: Change) -> bool:
        """Return whether a change fits. Each parent is an item, and perhaps a mark."""
        parents = len(self.parents) + (change.parent is not None and change.parent not in self.parents)
        return self.commit.takes(*change.writes(), spare=2 * parents)

    def add(self, change: Change) -> None:
        self.changes.append(change)
        change.into(self.commit)
        if change.parent is not None:
            self.parents[change.parent] = None


def packed(changes: Sequence[Change], new_commit: Callable[[], Commit]) -> list[list[Pack]]:
    """Return rounds of packs: packs of one round can be committed concurrently, because no parent is in two of them."""
    rounds: list[list[Pack]] = []
    latest: dict[str, tuple[int, Pack]] = {}  # by parent, the round of its last child
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
    """Return the last pack of this round, or a new one if it is full."""
    if number == len(rounds):
        rounds.append([])
    packs = rounds[number]
    if not packs or not packs[-1].takes(change):
        packs.append(Pack(new_commit()))
    return packs[-1]


Parents = Mapping[str, Item | None]


async def read(session: Session, parents: Iterable[str]) -> Parents:
    wanted = list(dict.fromkeys(parents))
    found = await session.tables.get(Table.JOBS, [(each,) for each in wanted], lane=Lane.URGENT)
    return dict(zip(wanted, found, strict=True))


async def settle(session: Session, made: Plan, now: Instant) -> None:
    """Add to the plan the effects on the parents of changed jobs."""
    elsewhere = [parent for parent in made.broods if parent not in made.moved]
    decide(made, await read(session, elsewhere) if elsewhere else {}, now)


def decide(made: Plan, parents: Parents, now: Instant) -> None:
    for parent_id, brood in list(made.broods.items()):
        if parent_id in made.moved:
            # Its own change is guarded by its version, and no job that changes in one commit with its child waits
            # afterwards.
            made.writes.append(_numbers(parent_id, brood, None))
            continue
        parent = parents.get(parent_id)
        if parent is not None and transitions.is_there(parent):
            _decide_one(made, parent, brood, now)


def _decide_one(made: Plan, parent: Item, brood: Brood, now: Instant) -> None:
    parent_id = parent["job_id"]
    if transitions.awaits(parent) is None:
        made.writes.append(_numbers(parent_id, brood, present("status") & (absent("awaits") | present("for_event"))))
        return
    moved = transitions.joined(parent, brood, now, items.new_wid())
    if moved is None:
        # What was read may be outdated. It continues to wait as long as a child is open, whatever else has changed.
        made.writes.append(_numbers(parent_id, brood, present("awaits") & above("open", -brood.open)))
    elif moved.ended:
        last = present("awaits") & equals("open", parent.get("open"))
        made.writes.append(_numbers(parent_id, brood, last))
        made.mark(outbox.new_mark(MarkKind.JOIN, parent_id, now))
    else:
        item = items.fit(moved.item)
        made.writes.append(transitions.written(msgspec.structs.replace(moved, item=item)))
        made.signals |= signals(item)


def _numbers(parent_id: str, brood: Brood, condition: Condition | None) -> Write:
    return add(Table.JOBS, (parent_id,), transitions.added(brood), condition)

"""What becomes of each job of an insert: an existing one answers for it, or a new item with its guard and edges. Pure.

Jobs are decided in order, over what was read and what the batch itself brings: one may depend on an earlier one of its
batch, name the same id or key, or join it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from holdfast.clock import Instant
from holdfast.errors import DedupConflict, HoldfastError, StoreError, UnknownDependency
from holdfast.lifecycle import ACTIVE, TERMINAL, Counted, Event, Kind, Status
from holdfast.store.types import Inserted, NewJob, Signal
from holdfast.stores.dynamodb import dedup, items, moving
from holdfast.stores.dynamodb.expressions import Condition, absent, equals, one_of, present
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.looking import Content, Looked
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.writes import Write, add
from holdfast.trees import Brood, TriggerRule, began, breaker
from holdfast.trees import moved as brood_of_move

INLINE_DEPENDENCIES_MAX = 4  # on the job itself, which should stay below a kilobyte; more are items of their own
LINKED_AT_ONCE_MAX = 40  # an edge and its parent are two of a commit's hundred items

_active = sorted(status.value for status in ACTIVE)


class Edge(msgspec.Struct, frozen=True):
    parent: str
    met: bool
    joined: bool


class New(msgspec.Struct):
    """A job to be stored. `linked_later`: it has so many dependencies that its edges follow its commit."""

    job: NewJob
    item: Item
    edges: list[Edge] = []
    donor: str | None = None
    counted: list[Counted] = []
    linked_later: bool = False
    saved_micros: int = 0  # where it reuses a result: what that one's run took

    @property
    def kind(self) -> Kind:
        return self.job.job_type, self.job.queue, self.job.priority

    @property
    def status(self) -> Status:
        return Status(self.item["status"])


class Touched(msgspec.Struct):
    """A stored job that new ones depend on, or are children of: how many, and how it stood."""

    item: Item
    awaited: int = 0
    brood: Brood = Brood()

    def write(self) -> Write:
        numbers = moving.added(self.brood) | ({"awaited": self.awaited} if self.awaited else {})
        return add(Table.JOBS, (self.item["job_id"],), numbers, self._still())

    def _still(self) -> Condition:
        if not self.awaited:
            return present("status") & absent("frozen")
        if self.item["status"] in _active:
            return one_of("status", _active)
        return equals("status", self.item["status"]) & absent("frozen")


class Guarded(msgspec.Struct):
    """A key that a new job takes."""

    job_id: str
    until: Instant | None


class Decided(msgspec.Struct):
    """`answers` in order: of an existing job, or one that comes earlier in the batch, only the id. `refusal`: why one
    cannot be stored, and with it none; what is decided is what comes before it."""

    answers: list[Inserted | str] = []
    news: dict[str, New] = {}
    touched: dict[str, Touched] = {}
    guarded: dict[str, Guarded] = {}
    signals: set[Signal] = set()
    refusal: HoldfastError | None = None

    @property
    def pending(self) -> list[NewJob]:
        return [new.job for new in self.news.values() if new.status is Status.PENDING]


def decide(jobs: Sequence[NewJob], looked: Looked, now: Instant, wid: str, *, promised: bool = False) -> Decided:
    """`promised`: the batch is accepted and this is a part of it: nothing is refused any more, and a job that is there
    was stored by an earlier try."""
    decider = _Decider(looked, now, wid, promised)
    try:
        for job in jobs:
            decider.decide(job)
    except (DedupConflict, StoreError, UnknownDependency) as refusal:
        decider.decided.refusal = refusal
    return decider.decided


def guards(decided: Decided, looked: Looked) -> list[Write]:
    return [
        dedup.guard(key, taken.job_id, taken.until, looked.guards.get(key)) for key, taken in decided.guarded.items()
    ]


class _Decider:
    def __init__(self, looked: Looked, now: Instant, wid: str, promised: bool) -> None:
        self.decided = Decided(answers=[], news={}, touched={}, guarded={}, signals=set())
        self._looked = looked
        self._now = now
        self._wid = wid
        self._promised = promised
        self._leaders: dict[Content, Item] = {}

    def decide(self, job: NewJob) -> None:
        answer = self._existing(job)
        if answer is None:
            new = self._special(job) if job.special else self._plain(job)
            self.decided.news[job.job_id] = new
            self._signal(new)
            answer = Inserted(job.job_id, new.status, reused_from=new.item.get("reused_from"))
        self.decided.answers.append(answer)

    def _existing(self, job: NewJob) -> Inserted | str | None:
        if job.job_id in self.decided.news:
            if not job.own_id:
                raise StoreError(f"job {job.job_id} is twice in one batch: give each an id of its own")
            return job.job_id
        stored = self._looked.items.get(job.job_id)
        if stored is not None and self._promised and (not job.own_id or stored.get("wid") == self._wid):
            return Inserted(job.job_id, moving.status_of(stored), reused_from=stored.get("reused_from"))
        if stored is not None and job.own_id:
            return job.job_id
        return None if job.dedup_key is None else self._by_key(job, job.dedup_key)

    def _by_key(self, job: NewJob, key: str) -> str | None:
        taken = self.decided.guarded.get(key)
        if taken is not None:
            target = self._find(taken.job_id)
            found = taken.job_id if dedup.in_force(taken.until, target, self._now) else None
        else:
            guard = self._looked.guards.get(key)
            target = None if guard is None else self._find(guard["job_id"])
            found = dedup.stands_for(guard, target, self._now)
        if found is None:
            return None
        # The archive keeps no payload: nothing can be said against a repeat then.
        payload = self._payload(found) if job.dedup_conflict_is_error and not self._promised else None
        if payload is not None and payload != job.payload:
            raise DedupConflict(f"dedup key {key!r} belongs to job {found}, whose payload is another")
        return found

    def _payload(self, job_id: str) -> str | None:
        new = self.decided.news.get(job_id)
        return self._looked.payloads.get(job_id) if new is None else new.job.payload

    def _find(self, job_id: str) -> Item | None:
        new = self.decided.news.get(job_id)
        return self._looked.items.get(job_id) if new is None else new.item

    # New jobs

    def _plain(self, job: NewJob) -> New:
        status = Status.SCHEDULED if job.scheduled_for > self._now else Status.PENDING
        item = items.new_item(job, status, self._now, Event.SUBMIT, self._wid)
        if job.content_hash and status in ACTIVE:
            self._leaders.setdefault((job.content_hash, job.job_type), item)
        return New(job, item, [], None, [Counted.SUBMITTED])

    def _special(self, job: NewJob) -> New:
        parent = None if job.parent_job_id is None else self._parent(job.parent_job_id)
        if parent is not None:
            job = msgspec.structs.replace(job, root_job_id=parent.get("root_job_id", parent["job_id"]))
        donor, leader = self._identical(job)
        depends_on = list(dict.fromkeys(job.depends_on))
        joins = None if leader is None or leader["job_id"] in depends_on else str(leader["job_id"])
        if joins is not None:
            depends_on.append(joins)
        parents = {parent: self._dependency(parent) for parent in depends_on}
        new = self._reused(job, donor) if donor is not None else self._submitted(job, parents, joins)
        self._link(new, parents, joins)
        if job.dedup_key is not None:
            self.decided.guarded[job.dedup_key] = Guarded(job.job_id, job.dedup_until)
        if job.content_hash and new.status in ACTIVE and joins is None:
            self._leaders.setdefault((job.content_hash, job.job_type), new.item)
        if parent is not None:
            self._count(parent, brood_of_move(None, new.status))
        return new

    def _parent(self, parent_id: str) -> Item | None:
        parent = self._find(parent_id)
        if parent is None or not moving.is_there(parent):
            if self._promised:
                return None
            raise UnknownDependency(
                f"no job {parent_id} to be the parent, or it is archived: submit it first; nothing was stored"
            )
        return parent

    def _count(self, parent: Item, brood: Brood) -> None:
        if parent["job_id"] not in self.decided.news:
            self._touch(parent).brood += brood
            return
        for name, number in moving.added(brood).items():
            parent[name] = parent.get(name, 0) + number

    def _identical(self, job: NewJob) -> tuple[Item | None, Item | None]:
        """A finished job whose result serves, or one on its way that will. Who starts at the first success of those it
        depends on cannot wait for another as well: a rule of its own joins nobody."""
        if job.reuse_since is None or not job.content_hash:
            return None, None
        content = (job.content_hash, job.job_type)
        donor = self._looked.donors.get(content)
        if donor is not None and donor["completed_at"] >= job.reuse_since:
            return donor, None
        if job.depends_on and job.trigger_rule != TriggerRule.ALL_SUCCESS:
            return None, None
        return None, self._looked.leaders.get(content) or self._leaders.get(content)

    def _dependency(self, parent_id: str) -> Status:
        parent = self._find(parent_id) or self._leader(parent_id)
        if parent is None:
            if self._promised:
                return Status.COMPLETED  # it was there, and the archive has forgotten it since
            raise UnknownDependency(f"no job {parent_id} to depend on: submit it first; nothing was stored")
        return moving.status_of(parent)

    def _reused(self, job: NewJob, donor: Item) -> New:
        item = items.new_item(job, Status.COMPLETED, self._now, Event.REUSE, self._wid)
        reused = moving.reused(item, donor, self._now)
        counted = [Counted.SUBMITTED, Counted.COMPLETED, Counted.REUSED]
        return New(job, reused, [], donor["job_id"], counted, saved_micros=moving.took(donor))

    def _submitted(self, job: NewJob, parents: dict[str, Status], joins: str | None) -> New:
        begins = began(
            rule=TriggerRule(job.trigger_rule),
            outcomes=Counter(parents.values()),
            on_failure=job.on_dependency_failure,
            scheduled_for=job.scheduled_for,
            now=self._now,
        )
        item = items.new_item(job, begins.status, self._now, Event.SUBMIT, self._wid)
        if begins.unmet:
            item["unmet"] = begins.unmet
        if joins is not None:
            item["joins"] = item["joined"] = joins
        new = New(job, item, [], None, [Counted.SUBMITTED])
        if begins.then is not None:
            by = breaker(TriggerRule(job.trigger_rule), parents)
            moved = moving.broken(item, by, parents[by], begins.then, self._now, self._wid)
            new.item = moved.item
            if moved.counted is not None:
                new.counted.append(moved.counted)
        return new

    def _link(self, new: New, parents: dict[str, Status], joins: str | None) -> None:
        """Its edges, and those that are awaited by it."""
        if not parents:
            return
        if len(parents) <= INLINE_DEPENDENCIES_MAX:
            new.item["depends_on"] = list(parents)
        else:
            new.item["needs"] = len(parents)
        new.edges = [Edge(parent, status in TERMINAL, parent == joins) for parent, status in parents.items()]
        if len(parents) > LINKED_AT_ONCE_MAX:
            new.linked_later = True
            if new.status is Status.WAITING:
                # Every edge counts, and one more: until the last is registered nothing releases it.
                new.item["unmet"], new.item["linking"] = len(parents) + 1, 1
            return
        for parent_id in parents:
            brought = self.decided.news.get(parent_id)
            if brought is not None:
                brought.item["awaited"] = brought.item.get("awaited", 0) + 1
                continue
            parent = self._find(parent_id) or self._leader(parent_id)
            if parent is not None and moving.is_there(parent):
                self._touch(parent).awaited += 1

    def _leader(self, job_id: str) -> Item | None:
        return next((each for each in self._looked.leaders.values() if each["job_id"] == job_id), None)

    def _touch(self, item: Item) -> Touched:
        return self.decided.touched.setdefault(item["job_id"], Touched(item))

    def _signal(self, new: New) -> None:
        match new.status:
            case Status.PENDING:
                self.decided.signals.add(Signal.READY)
            case Status.SCHEDULED:
                self.decided.signals.add(Signal.DUE)
            case Status.COMPLETED | Status.FAILED | Status.CANCELLED:
                self.decided.signals.add(Signal.ENDED)
            case _:
                pass

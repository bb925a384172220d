"""Decides what each job of an insert becomes: a new item, or an answer by an existing job.

`look` reads what is needed, consistently except for the index that proposes identical jobs; `decide` is pure. Jobs are
decided in order, over what was read and what the batch itself adds: one may depend on an earlier one of its batch, name
the same id or key, or join it.

Every write of a deduplication guard gives it a new nonce and compares the one that was read: a guard that had ended
when it was read, and belongs to an active job by now, is not overwritten.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from backstay.clock import Instant
from backstay.core import dedup, lifecycle
from backstay.core.dependencies import Brood, TriggerRule, began, breaker
from backstay.core.dependencies import moved as brood_of_move
from backstay.core.records import FOREVER, Inserted, Kind, NewJob, Signal
from backstay.core.states import ACTIVE, TERMINAL, Counted, Event, Status
from backstay.engines.dynamodb import items, schema, transitions
from backstay.engines.dynamodb.expressions import Ask, Condition, Write, absent, add, equals, one_of, present, put
from backstay.engines.dynamodb.schema import CONTENT, Item, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.transitions import Moved
from backstay.errors import BackstayError, DedupConflict, StoreError, UnknownDependency

Content = tuple[str, str]  # hash and job type: what makes jobs identical
_PROPOSED_MAX = 20  # identical jobs that are examined; one beyond these is merely not reused


class Looked(msgspec.Struct):
    """What was read: jobs by id, including archived ones; guards by key; of identical jobs the newest completed one,
    with its result as text, and the oldest active one."""

    items: dict[str, Item] = {}
    guards: dict[str, Item] = {}
    payloads: dict[str, str] = {}  # payloads of the jobs that keys belong to, if a conflict is an error
    donors: dict[Content, Item] = {}
    leaders: dict[Content, Item] = {}


async def look(session: Session, jobs: Sequence[NewJob], *, every_id: bool = False) -> Looked:
    """Read what a decision needs. `every_id`: also look up generated ids, because this may be a repeat."""
    special = [job for job in jobs if job.special]
    wanted = {job.job_id for job in (jobs if every_id else special) if every_id or job.own_id}
    for job in special:
        wanted.update(job.depends_on)
        if job.parent_job_id is not None:
            wanted.add(job.parent_job_id)
    guarded = list(dict.fromkeys(job.dedup_key for job in special if job.dedup_key is not None))
    contents: list[Content] = list(
        {(job.content_hash, job.job_type) for job in special if job.reuse_since is not None and job.content_hash}
    )
    if not wanted and not guarded and not contents:
        return Looked()
    looked = Looked()
    looked.items, guards = await asyncio.gather(get_jobs(session, wanted), _guards(session, guarded))
    looked.guards = guards
    targets = {guard["job_id"] for guard in guards.values()} - wanted
    looked.items.update(await get_jobs(session, targets))
    identical = await asyncio.gather(*(_identical(session, hashed, kind) for hashed, kind in contents))
    for content, (donor, leader) in zip(contents, identical, strict=True):
        if donor is not None:
            looked.donors[content] = donor
        if leader is not None:
            looked.leaders[content] = leader
    strict = {job.dedup_key for job in special if job.dedup_conflict_is_error}
    looked.payloads = await _payloads(session, looked, [key for key in guards if key in strict])
    return looked


async def get_jobs(session: Session, job_ids: Iterable[str]) -> dict[str, Item]:
    """Read jobs, including archived ones, which have the same key."""
    wanted = list(job_ids)
    if not wanted:
        return {}
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in wanted])
    return {job_id: item for job_id, item in zip(wanted, found, strict=True) if item is not None}


async def _guards(session: Session, guarded: list[str]) -> dict[str, Item]:
    if not guarded:
        return {}
    found = await session.tables.get(Table.RECORDS, [schema.guard(key) for key in guarded])
    return {key: item for key, item in zip(guarded, found, strict=True) if item is not None}


async def _payloads(session: Session, looked: Looked, guarded: list[str]) -> dict[str, str]:
    targets = [
        looked.items[guard["job_id"]]
        for guard in map(looked.guards.__getitem__, guarded)
        if transitions.is_there(looked.items.get(guard["job_id"]))
    ]
    texts = await items.fetch(session.tables, targets)
    return {item["job_id"]: items.payload(item, texts) for item in targets}


async def _identical(session: Session, content_hash: str, job_type: str) -> tuple[Item | None, Item | None]:
    """Return the newest completed and the oldest active identical job; the insert decides which one to use."""
    kind = schema.part(job_type)
    # In this order: a job that completes in between is found as completed, instead of being missed by both reads.
    under_way = await _proposed(session, content_hash, f"{kind}|open|", backwards=False)
    done = await _proposed(session, content_hash, f"{kind}|done|", backwards=True)
    donor = await _donor(session, [item for item in done if item["status"] == Status.COMPLETED])
    leader = next((item for item in under_way if Status(item["status"]) in ACTIVE and "joins" not in item), None)
    try:
        return None if donor is None else await with_result(session, donor), leader
    except items.Missing:  # archived since: it has no result
        return None, leader


async def _donor(session: Session, done: Sequence[Item]) -> Item | None:
    """Return the newest job whose rows are valid: if they belong to another job, that one must not be running again."""
    owners = await get_jobs(session, {item["rows_of"] for item in done if "rows_of" in item})
    for item in done:
        owner = owners.get(item.get("rows_of", ""))
        if "rows_of" not in item or (
            transitions.has_rows_of(item, owner)
            and owner is not None
            and transitions.status_of(owner) is Status.COMPLETED
        ):
            return item
    return None


async def _proposed(session: Session, content_hash: str, begins: str, *, backwards: bool) -> list[Item]:
    ask = Ask(
        table=Table.JOBS,
        index=CONTENT.name,
        hash=content_hash,
        begins=begins,
        backwards=backwards,
        page=_PROPOSED_MAX,
    )
    ids = []
    async for row in session.tables.ask(ask):
        ids.append(row["job_id"])
        if len(ids) == _PROPOSED_MAX:
            break
    found = await get_jobs(session, ids)
    return [found[job_id] for job_id in ids if transitions.is_there(found.get(job_id))]


async def with_result(session: Session, donor: Item) -> Item:
    """Return the donor with its result as text, which the reusing job copies."""
    if "result_body" not in donor:
        return donor
    texts = await items.fetch(session.tables, [donor])
    whole = {name: value for name, value in donor.items() if name != "result_body"}
    result = items.result(donor, texts)
    return whole if result is None else {**whole, "result": result}


def in_force(until: Instant | None, target: Item | None, now: Instant) -> bool:
    """Return whether a guard is in force; `until` None means as long as its job is active."""
    if target is None:
        return False
    return transitions.status_of(target) not in TERMINAL if until is None else now < until


def stands_for(guard: Item | None, target: Item | None, now: Instant) -> str | None:
    """Return the job that a key belongs to; None if the guard has ended or its job no longer exists."""
    if guard is None or not in_force(guard.get("until"), target, now):
        return None
    job_id: str = guard["job_id"]
    return job_id


def guard(key: str, job_id: str, until: Instant | None, seen: Item | None) -> Write:
    """Return the write that gives the key to this job, replacing the guard that was read."""
    pk, sk = schema.guard(key)
    item: Item = {"pk": pk, "sk": sk, "key": key, "job_id": job_id, "nonce": secrets.token_hex(8)}
    if until is not None:
        item["until"] = min(until, FOREVER)
    return put(Table.RECORDS, item, absent("pk") if seen is None else equals("nonce", seen["nonce"]))


# dependencies on the job's item, which should stay below a kilobyte; more are separate items
INLINE_DEPENDENCIES_MAX = 4
LINKED_AT_ONCE_MAX = 40  # an edge and its dependency are two of a commit's hundred items

_active = sorted(status.value for status in ACTIVE)


class Edge(msgspec.Struct, frozen=True):
    parent: str
    met: bool
    joined: bool


class New(msgspec.Struct):
    """A job to store. `linked_later`: it has so many dependencies that its edges are registered after its commit."""

    job: NewJob
    item: Item
    edges: list[Edge] = []
    donor: str | None = None
    counted: list[Counted] = []
    linked_later: bool = False
    saved_micros: int = 0  # if it reuses a result: the run time saved

    @property
    def kind(self) -> Kind:
        return self.job.job_type, self.job.queue, self.job.priority

    @property
    def status(self) -> Status:
        return Status(self.item["status"])


class Touched(msgspec.Struct):
    """A stored job that new jobs depend on or are children of: how many, and its state when read."""

    item: Item
    awaited: int = 0
    brood: Brood = Brood()

    def write(self) -> Write:
        numbers = transitions.added(self.brood) | ({"awaited": self.awaited} if self.awaited else {})
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
    """A decision. `answers` in order: for an existing job, or one earlier in the batch, only the id. `refusal`: why a
    job cannot be stored, and so none can; then only the jobs before it are decided."""

    answers: list[Inserted | str] = []
    news: dict[str, New] = {}
    touched: dict[str, Touched] = {}
    guarded: dict[str, Guarded] = {}
    replaced: dict[str, Moved] = {}  # stored jobs that wait, and what later submits with their keys make of them
    signals: set[Signal] = set()
    refusal: BackstayError | None = None

    @property
    def pending(self) -> list[NewJob]:
        return [new.job for new in self.news.values() if new.status is Status.PENDING]


def decide(jobs: Sequence[NewJob], looked: Looked, now: Instant, wid: str, *, promised: bool = False) -> Decided:
    """Decide what each job becomes. `promised`: these are part of an accepted batch: none is refused, and an existing
    job was stored by an earlier try."""
    decider = _Decider(looked, now, wid, promised)
    try:
        for job in jobs:
            decider.decide(job)
    except (DedupConflict, StoreError, UnknownDependency) as refusal:
        decider.decided.refusal = refusal
    return decider.decided


def guards(decided: Decided, looked: Looked) -> list[Write]:
    return [guard(key, taken.job_id, taken.until, looked.guards.get(key)) for key, taken in decided.guarded.items()]


class _Decider:
    def __init__(self, looked: Looked, now: Instant, wid: str, promised: bool) -> None:
        self.decided = Decided(answers=[], news={}, touched={}, guarded={}, replaced={}, signals=set())
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
                raise StoreError(f"job {job.job_id} appears twice in one batch: give each its own id")
            return job.job_id
        stored = self._looked.items.get(job.job_id)
        if stored is not None and self._promised and (not job.own_id or stored.get("wid") == self._wid):
            return Inserted(job.job_id, transitions.status_of(stored), reused_from=stored.get("reused_from"))
        if stored is not None and job.own_id:
            return job.job_id
        return None if job.dedup_key is None else self._by_key(job, job.dedup_key)

    def _by_key(self, job: NewJob, key: str) -> str | None:
        taken = self.decided.guarded.get(key)
        if taken is not None:
            target = self._find(taken.job_id)
            found = taken.job_id if in_force(taken.until, target, self._now) else None
        else:
            guard = self._looked.guards.get(key)
            target = None if guard is None else self._find(guard["job_id"])
            found = stands_for(guard, target, self._now)
        if found is None:
            return None
        if job.dedup_replaces and target is not None and transitions.status_of(target) not in TERMINAL:
            return self._replace(job, found, target)
        # The archive has no payload to compare: the repeat is accepted.
        payload = self._payload(found) if job.dedup_conflict_is_error and not self._promised else None
        if payload is not None and payload != job.payload:
            raise DedupConflict(f"dedup key {key!r} belongs to job {found}, whose payload is different")
        return found

    def _replace(self, job: NewJob, job_id: str, item: Item) -> str | None:
        """Give the job that has the key what this one brings; None if it has begun, and this one takes the key."""
        dedup.check_replaceable(job, job_id, item["job_type"])
        transition = lifecycle.replace(items.bare_record(item), job, now=self._now)
        if transition is None:
            return None
        moved = transitions.applied(item, transition, self._now, self._wid)
        if not isinstance(moved, Moved):
            raise StoreError(f"job {job_id} cannot be replaced: {moved.value}")
        self.decided.signals |= {Signal.READY, Signal.DUE}
        new = self.decided.news.get(job_id)
        if new is not None:
            new.item = moved.item
            return job_id
        before = self.decided.replaced.get(job_id)
        was = moved.was if before is None else before.was
        self.decided.replaced[job_id] = msgspec.structs.replace(moved, was=was)
        return job_id

    def _payload(self, job_id: str) -> str | None:
        new = self.decided.news.get(job_id)
        return self._looked.payloads.get(job_id) if new is None else new.job.payload

    def _find(self, job_id: str) -> Item | None:
        if (new := self.decided.news.get(job_id)) is not None:
            return new.item
        replaced = self.decided.replaced.get(job_id)
        return self._looked.items.get(job_id) if replaced is None else replaced.item

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
        if parent is None or not transitions.is_there(parent):
            if self._promised:
                return None
            raise UnknownDependency(
                f"no job {parent_id} to be the parent, or it was archived: submit it first; nothing was stored"
            )
        return parent

    def _count(self, parent: Item, brood: Brood) -> None:
        if parent["job_id"] not in self.decided.news:
            self._touch(parent).brood += brood
            return
        for name, number in transitions.added(brood).items():
            parent[name] = parent.get(name, 0) + number

    def _identical(self, job: NewJob) -> tuple[Item | None, Item | None]:
        """Return an identical job: a completed one whose result can be reused, or an active one to join. A job with a
        trigger rule of its own never joins: it could not also wait for another job."""
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
                return Status.COMPLETED  # it existed, and its archive row has been deleted since
            raise UnknownDependency(f"no job {parent_id} to depend on: submit it first; nothing was stored")
        return transitions.status_of(parent)

    def _reused(self, job: NewJob, donor: Item) -> New:
        item = items.new_item(job, Status.COMPLETED, self._now, Event.REUSE, self._wid)
        reused = transitions.reused(item, donor, self._now)
        counted = [Counted.SUBMITTED, Counted.COMPLETED, Counted.REUSED]
        return New(job, reused, [], donor["job_id"], counted, saved_micros=transitions.took(donor))

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
            moved = transitions.broken(item, by, parents[by], begins.then, self._now, self._wid)
            new.item = moved.item
            if moved.counted is not None:
                new.counted.append(moved.counted)
        return new

    def _link(self, new: New, parents: dict[str, Status], joins: str | None) -> None:
        """Add its edges, and count it at its dependencies."""
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
                # Counts every edge and one more, so that nothing releases it before the last edge is registered.
                new.item["unmet"], new.item["linking"] = len(parents) + 1, 1
            return
        for parent_id in parents:
            brought = self.decided.news.get(parent_id)
            if brought is not None:
                brought.item["awaited"] = brought.item.get("awaited", 0) + 1
                continue
            parent = self._find(parent_id) or self._leader(parent_id)
            if parent is not None and transitions.is_there(parent):
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

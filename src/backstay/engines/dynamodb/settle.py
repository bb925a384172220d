"""`apply` on DynamoDB: every transition of a claim's holder, of editors and of rescuers, with its guards.

    base (remembered, or read) ──▶ transitions.applied ──▶ commits of many ──▶ refused: judged again on a fresh read
                                                      └──▶ separately: jobs that end with dependents, add children, or
                                                           are retried by hand

A remembered item may be old, so any verdict but APPLIED is given only on an item that was read in the same call; what a
refused write returns is such a read. An ended job may run again if its dependencies have ended as its rule demands, and
its deduplication key belongs to no other job; if a dependency runs again too, it may wait for that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from backstay.clock import Instant
from backstay.core.dependencies import TriggerRule, again
from backstay.core.records import Transition, Verdict
from backstay.core.states import ACTIVE, Event, Status
from backstay.engines.dynamodb import (
    children,
    dependencies,
    holder,
    insert_decision,
    items,
    outbox,
    parking,
    plan,
    schema,
    transitions,
)
from backstay.engines.dynamodb.admission import bucket_of
from backstay.engines.dynamodb.commit import Cancelled, Commit, Rounds
from backstay.engines.dynamodb.expressions import Write, check, one_of, present, update
from backstay.engines.dynamodb.insert import TooLarge
from backstay.engines.dynamodb.outbox import Mark, MarkKind
from backstay.engines.dynamodb.plan import Change, Pack, Plan, packed
from backstay.engines.dynamodb.schema import Item, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.transitions import Moved
from backstay.engines.dynamodb.transport import Lane
from backstay.engines.sql_rows import check_all, left_their_place
from backstay.errors import EffectFailed, StoreError
from backstay.limits import RELEASE_BATCH_MAX

_active = sorted(status.value for status in ACTIVE)


class Again(msgspec.Struct, frozen=True):
    """A manual retry: the new item, and the other writes of its commit. `mark` is set if it has so many edges that they
    are registered later."""

    moved: Moved
    writes: list[Write] = []
    mark: Mark | None = None


async def run_again(session: Session, item: Item, t: Transition, now: Instant) -> Again | Verdict:
    standing = await _standing(session, item)
    rule = TriggerRule(item.get("rule", TriggerRule.ALL_SUCCESS))
    may = again(rule=rule, outcomes=Counter(standing.values()))
    if may.blocked or (may.unmet and not t.rewait):
        return Verdict.BLOCKED
    guards = await _guards(session, item, now)
    if isinstance(guards, Verdict):
        return guards
    if t.forget_steps:
        guards = [*guards, holder.forget_steps(t)]
    if may.unmet:
        t = msgspec.structs.replace(t, target=Status.WAITING)
    moved = transitions.applied(item, t, now, items.new_wid())
    if isinstance(moved, Verdict):
        return moved
    return _waiting(moved, guards, standing, now) if may.unmet else Again(moved, guards)


async def _standing(session: Session, item: Item) -> Mapping[str, Status]:
    """Return the status of each dependency; one that no longer exists has completed. A job that it once joined does not
    count."""
    wanted = [parent for parent in await dependencies.dependencies(session, item) if parent != item.get("joined")]
    if not wanted:
        return {}
    named = ("job_id", "status", "archived_at", "ended")
    found = await session.tables.get(Table.JOBS, [(parent,) for parent in wanted], only=named)
    return {
        parent: Status.COMPLETED if each is None else transitions.status_of(each)
        for parent, each in zip(wanted, found, strict=True)
    }


async def _guards(session: Session, item: Item, now: Instant) -> list[Write] | Verdict:
    """Return the write that gives the job its dedup key back."""
    key = item.get("dedup_key")
    if key is None:
        return []
    [guard] = await session.tables.get(Table.RECORDS, [schema.guard(key)])
    target = (
        None if guard is None else (await insert_decision.get_jobs(session, [guard["job_id"]])).get(guard["job_id"])
    )
    stands_for = insert_decision.stands_for(guard, target, now)
    if stands_for is None:
        return [insert_decision.guard(key, item["job_id"], None, guard)]
    return [] if stands_for == item["job_id"] else Verdict.TAKEN


def _waiting(moved: Moved, guards: list[Write], standing: Mapping[str, Status], now: Instant) -> Again:
    """Return the job as waiting again: edges to active dependencies count again, the others do not."""
    job_id = moved.item["job_id"]
    if len(standing) > dependencies.TOGETHER_MAX:
        moved.item.update(unmet=len(standing) + 1, linking=1)
        mark = outbox.new_mark(MarkKind.LINK, job_id, now, again=1)
        return Again(moved, [*guards, outbox.written(mark)], mark)
    moved.item["unmet"] = sum(status in ACTIVE for status in standing.values())
    writes = list(guards)
    for parent, status in standing.items():
        place = schema.edge(parent, job_id)
        if status in ACTIVE:
            writes += [
                update(Table.RECORDS, place, removes=("met",), condition=present("pk")),
                check(Table.JOBS, (parent,), one_of("status", _active)),
            ]
        else:
            writes.append(update(Table.RECORDS, place, sets={"met": 1}))
    return Again(moved, writes)


COMMITS_TOGETHER = 4


async def apply(session: Session, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
    check_all(transitions)
    for t in transitions:
        if t.effects:
            raise EffectFailed(
                "ctx.transaction() runs statements in the commit of a job: DynamoDB has none to run them in;"
                " use ctx.once() for what must not be repeated",
                job_id=t.job_id,
            )
    if len(transitions) > 1:
        await children.refuse(session, transitions, now)
    batch = _Batch(session, transitions, now)
    for wave in _waves(transitions):
        await batch.apply(wave)
    await batch.follow()
    return batch.verdicts


def _waves(transitions: Sequence[Transition]) -> list[list[int]]:
    """Return positions in waves with no job twice: the second change of a job is decided on the result of the first."""
    waves: list[list[int]] = []
    named: dict[str, int] = {}
    for position, t in enumerate(transitions):
        number = named[t.job_id] = named.get(t.job_id, -1) + 1
        if number == len(waves):
            waves.append([])
        waves[number].append(position)
    return waves


class _Batch:
    def __init__(self, session: Session, transitions: Sequence[Transition], now: Instant) -> None:
        self.verdicts = [Verdict.STALE] * len(transitions)
        self._session = session
        self._transitions = transitions
        self._now = now
        self._read: dict[str, Item | None] = {}  # as read or written by this call
        self._applied: list[Transition] = []
        self._items: dict[str, Item] = {}  # of the applied transitions

    # One wave

    async def apply(self, wave: list[int]) -> None:
        changes = await self._decide(wave)
        # A parent and its child are never in one commit: the effect of one's end depends on the state of the other.
        own = {each.t.job_id for each in changes}
        later = [each.position for each in changes if each.moved.item.get("parent_job_id") in own]
        changes = [each for each in changes if each.position not in later]
        alone: list[Change] = []
        rounds = Rounds("apply")
        while True:
            # Also after a refusal: a job may have got a dependent since it was remembered.
            alone += [each for each in changes if each.goes_alone]
            changes = await self._commit_all([each for each in changes if not each.goes_alone])
            if not changes:
                break
            await rounds.again()
        for each in alone:  # one after another: the same job may wait for two of them
            await self._apply_alone(each)
        if later:
            await self.apply(later)

    async def _decide(self, wave: list[int]) -> list[Change]:
        ids = [self._transitions[position].job_id for position in wave]
        await self._read_those([job_id for job_id in ids if self._base(job_id) is None])
        changes, doubtful = self._judge(wave)
        if doubtful:
            await self._read_those([self._transitions[position].job_id for position in doubtful])
            changes += self._judge(doubtful)[0]
        return changes

    def _base(self, job_id: str) -> Item | None:
        return self._read[job_id] if job_id in self._read else self._session.remembered.get(job_id)

    async def _read_those(self, job_ids: Iterable[str]) -> None:
        wanted = [job_id for job_id in dict.fromkeys(job_ids) if job_id not in self._read]
        if not wanted:
            return
        found = await self._session.tables.get(Table.JOBS, [(job_id,) for job_id in wanted], lane=Lane.URGENT)
        self._read.update(zip(wanted, found, strict=True))

    def _judge(self, positions: Iterable[int]) -> tuple[list[Change], list[int]]:
        """Return the transitions to write, and those that only an outdated item may have refused; answer the others."""
        changes, doubtful = [], []
        for position in positions:
            t = self._transitions[position]
            moved = transitions.applied(self._base(t.job_id), t, self._now, items.new_wid())
            if isinstance(moved, Moved):
                changes.append(Change(position, t, moved))
            elif t.job_id in self._read:
                self.verdicts[position] = moved
            else:
                doubtful.append(position)
        return changes, doubtful

    # Many in one commit

    async def _commit_all(self, changes: list[Change]) -> list[Change]:
        """Commit packs; return the transitions to try again: another one of their commit was refused, or they were
        refused on an outdated item."""
        spilled, texts = self._spill(changes)
        await items.put(self._session.tables, texts, lane=Lane.URGENT)
        again: list[Change] = []
        for packs in packed(spilled, lambda: Commit(self._session.tables, "apply", self._now)):
            named = [parent for pack in packs for parent in pack.parents]
            parents = await plan.read(self._session, named) if named else {}
            for start in range(0, len(packs), COMMITS_TOGETHER):
                group = packs[start : start + COMMITS_TOGETHER]
                for left in await asyncio.gather(*(self._commit_pack(pack, parents) for pack in group)):
                    again += left
        return again

    async def _commit_pack(self, pack: Pack, parents: plan.Parents) -> list[Change]:
        made = Plan()
        for change in pack.changes:
            made.follow(change.moved)
        plan.decide(made, parents, self._now)
        made.into(pack.commit)
        return await self._commit(pack.commit, pack.changes, made.marks)

    async def _commit(self, commit: Commit, changes: list[Change], marks: Sequence[Mark] = ()) -> list[Change]:
        try:
            await commit.run(Lane.URGENT)
        except Cancelled as cancelled:
            return await self._judge_again(cancelled, changes)
        self._done(commit, changes)
        if marks:
            with contextlib.suppress(StoreError):  # the marks are written: maintenance continues from them
                await dependencies.resume(self._session, marks, self._now, RELEASE_BATCH_MAX)
        return []

    def _spill(self, changes: list[Change]) -> tuple[list[Change], list[Item]]:
        spilled, texts = [], []
        for change in changes:
            item, records = items.spill(items.fit(change.moved.item))
            spilled.append(Change(change.position, change.t, msgspec.structs.replace(change.moved, item=item)))
            texts += records
        return spilled, texts

    async def _judge_again(self, cancelled: Cancelled, changes: list[Change]) -> list[Change]:
        """Decide again about refused transitions, on the items that the refusal returned; nothing of the commit was
        applied."""
        refused = [change.position for change in changes if cancelled.of_job(change.t.job_id)]
        for job_id in (self._transitions[position].job_id for position in refused):
            self._read.pop(job_id, None)
            if (standing := cancelled.failed[Table.JOBS, (job_id,)]) is not None:
                self._read[job_id] = standing
        await self._read_those(self._transitions[position].job_id for position in refused)
        again, _ = self._judge(refused)
        return [change for change in changes if change.position not in refused] + again

    def _done(self, commit: Commit, changes: list[Change]) -> None:
        self._session.board.committed(commit.signals)
        for change in changes:
            self.verdicts[change.position] = Verdict.APPLIED
            self._read[change.t.job_id] = self._items[change.t.job_id] = change.moved.item
            self._session.remembered.drop(change.t.job_id)
            self._applied.append(change.t)

    # Alone

    async def _apply_alone(self, change: Change) -> None:
        rounds = Rounds("apply")
        while True:
            if not change.goes_alone:
                left = await self._commit_all([change])
            elif change.t.event is Event.MANUAL_RETRY:
                left = await self._retry(change)
            elif change.brings:
                left = await self._bring(change)
            else:
                left = await self._end(change)
            if not left:
                return
            await rounds.again()
            # it has its texts again, and perhaps need not be committed separately
            changes, _ = self._judge([change.position])
            if not changes:
                return
            [change] = changes

    async def _retry(self, change: Change) -> list[Change]:
        """Apply a manual retry, which checks the dependencies and the dedup key."""
        again = await run_again(self._session, change.moved.was, change.t, self._now)
        if isinstance(again, Verdict):
            self.verdicts[change.position] = again
            return []
        [spilled], texts = self._spill([Change(change.position, change.t, again.moved)])
        commit, made = Commit(self._session.tables, "apply", self._now), Plan()
        spilled.into(commit)
        commit.write(*again.writes)
        made.follow(spilled.moved)
        await plan.settle(self._session, made, self._now)
        made.into(commit)
        await items.put(self._session.tables, texts, lane=Lane.URGENT)
        left = await self._commit(commit, [spilled])
        if not left and again.mark is not None and self.verdicts[change.position] is Verdict.APPLIED:
            with contextlib.suppress(StoreError):
                await dependencies.link(self._session, again.mark, self._now)
        return left

    async def _end(self, change: Change) -> list[Change]:
        """End a job together with its dependents if they fit into the commit, else with a mark from which they are
        released."""
        session, now, job_id = self._session, self._now, change.t.job_id
        [spilled], texts = self._spill([change])
        children = await dependencies.unmet(session, job_id, dependencies.TOGETHER_MAX + 1)
        fits = len(children) <= dependencies.TOGETHER_MAX
        if fits:
            made = await dependencies.plan(session, change.moved.item, children, now)
            commit = await self._ending(spilled, made)
            fits = commit.takes()
        if not fits:
            made = Plan()
            made.mark(outbox.new_mark(MarkKind.ENDED, job_id, now))
            commit = await self._ending(spilled, made)
        await items.put(session.tables, [*texts, *made.texts], lane=Lane.URGENT)
        return await self._commit(commit, [spilled], made.marks)

    async def _ending(self, change: Change, made: Plan) -> Commit:
        commit = Commit(self._session.tables, "apply", self._now)
        change.into(commit)
        made.follow(change.moved)
        await plan.settle(self._session, made, self._now)
        made.into(commit)
        return commit

    async def _bring(self, change: Change) -> list[Change]:
        """Settle a job together with its children, or with a mark from which they are stored."""
        session, t, now = self._session, change.t, self._now
        brought = await children.prepare(session, t, now)
        while True:
            moved = transitions.applied(self._base(t.job_id), t, now, items.new_wid(), brought.brood)
            if not isinstance(moved, Moved):
                return [change]  # it is decided again
            [spilled], texts = self._spill([Change(change.position, t, moved)])
            made = Plan()
            made.follow(spilled.moved)
            if moved.ended and moved.was.get("awaited"):
                made.mark(outbox.new_mark(MarkKind.ENDED, t.job_id, now))
            await plan.settle(session, made, now)
            try:
                commit = await brought.commit(session, [*spilled.writes(), *made.writes], now)
                break
            except TooLarge:
                brought = await children.staged(session, t, now)
        spilled.tell(commit)
        commit.signals |= made.signals
        await items.put(session.tables, texts, lane=Lane.URGENT)
        left = await self._commit(commit, [spilled], made.marks)
        if not left and brought.mark is not None and self.verdicts[change.position] is Verdict.APPLIED:
            with contextlib.suppress(StoreError):
                await children.unpack(session, brought.mark, now, RELEASE_BATCH_MAX)
        return left

    # After the commit

    async def follow(self) -> None:
        """Unpark jobs that waited for a key or rate; maintenance does it too, so a failure here loses nothing."""
        limits = {
            item["concurrency_key"]: item["concurrency_limit"]
            for item in self._items.values()
            if "concurrency_key" in item and "concurrency_limit" in item
        }
        left = set(left_their_place(self._applied))
        found = (bucket_of(item) for job_id, item in self._items.items() if job_id in left)
        buckets = {bucket for bucket in found if bucket is not None}
        if not limits and not buckets:
            return
        with contextlib.suppress(StoreError):
            self._session.board.committed(await parking.after_leaving(self._session, limits, buckets, self._now))

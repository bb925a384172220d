"""apply: every write of a claim's holder, and of editors and rescuers, with its guards.

    base (remembered, or read) ──▶ moving.applied ──▶ commits of many ──▶ refused: judged again on what stands there
                                                 └──▶ by itself: who ends with dependents, who brings children, who is
                                                      retried by hand

A remembered item may be old, so any verdict but APPLIED is given only on an item that was read in the same call; what a
refused write gives back is such a read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

import msgspec

from holdfast.clock import Instant
from holdfast.errors import EffectFailed, StoreError
from holdfast.lifecycle import Event, Transition
from holdfast.limits import RELEASE_BATCH_MAX
from holdfast.store.types import Verdict
from holdfast.stores.dynamodb import (
    bodies,
    bringing,
    broods,
    following,
    items,
    linking,
    moving,
    outbox,
    parking,
    releasing,
    retrying,
    unpacking,
)
from holdfast.stores.dynamodb.commit import Cancelled, Commit
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.moving import Moved
from holdfast.stores.dynamodb.outbox import Mark, MarkKind
from holdfast.stores.dynamodb.packing import Change, Pack, packed
from holdfast.stores.dynamodb.plan import Plan
from holdfast.stores.dynamodb.rounds import Rounds
from holdfast.stores.dynamodb.storing import TooLarge
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane
from holdfast.stores.transitions import check_all, left_their_place

COMMITS_TOGETHER = 4


async def apply(ground: Ground, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
    check_all(transitions)
    for t in transitions:
        if t.effects:
            raise EffectFailed(
                "ctx.transaction() runs statements in the commit of a job: DynamoDB has none to run them in;"
                " use ctx.once() for what must not be repeated",
                job_id=t.job_id,
            )
    if len(transitions) > 1:
        await bringing.refuse(ground, transitions, now)
    batch = _Batch(ground, transitions, now)
    for wave in _waves(transitions):
        await batch.apply(wave)
    await batch.follow()
    return batch.verdicts


def _waves(transitions: Sequence[Transition]) -> list[list[int]]:
    """Positions such that no job is twice in a wave: the second change of a job is decided on what the first made."""
    waves: list[list[int]] = []
    named: dict[str, int] = {}
    for position, t in enumerate(transitions):
        number = named[t.job_id] = named.get(t.job_id, -1) + 1
        if number == len(waves):
            waves.append([])
        waves[number].append(position)
    return waves


class _Batch:
    def __init__(self, ground: Ground, transitions: Sequence[Transition], now: Instant) -> None:
        self.verdicts = [Verdict.STALE] * len(transitions)
        self._ground = ground
        self._transitions = transitions
        self._now = now
        self._read: dict[str, Item | None] = {}  # as this call read or wrote them
        self._applied: list[Transition] = []
        self._items: dict[str, Item] = {}  # of those that were applied

    # One wave

    async def apply(self, wave: list[int]) -> None:
        changes = await self._decide(wave)
        # A parent and its child are never in one commit: what the end of one means is decided by how the other stands.
        own = {each.t.job_id for each in changes}
        later = [each.position for each in changes if each.moved.item.get("parent_job_id") in own]
        changes = [each for each in changes if each.position not in later]
        alone: list[Change] = []
        rounds = Rounds("apply")
        while True:
            # After a refusal too: a job may have got a dependent since it was remembered.
            alone += [each for each in changes if each.goes_alone]
            changes = await self._commit_all([each for each in changes if not each.goes_alone])
            if not changes:
                break
            await rounds.again()
        for each in alone:  # one after another: two of them may be waited for by the same job
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
        return self._read[job_id] if job_id in self._read else self._ground.remembered.get(job_id)

    async def _read_those(self, job_ids: Iterable[str]) -> None:
        wanted = [job_id for job_id in dict.fromkeys(job_ids) if job_id not in self._read]
        if not wanted:
            return
        found = await self._ground.tables.get(Table.JOBS, [(job_id,) for job_id in wanted], lane=Lane.URGENT)
        self._read.update(zip(wanted, found, strict=True))

    def _judge(self, positions: Iterable[int]) -> tuple[list[Change], list[int]]:
        """Those that may be written, and those that only a remembered item speaks against. The others are answered."""
        changes, doubtful = [], []
        for position in positions:
            t = self._transitions[position]
            moved = moving.applied(self._base(t.job_id), t, self._now, items.new_wid())
            if isinstance(moved, Moved):
                changes.append(Change(position, t, moved))
            elif t.job_id in self._read:
                self.verdicts[position] = moved
            else:
                doubtful.append(position)
        return changes, doubtful

    # Many in one commit

    async def _commit_all(self, changes: list[Change]) -> list[Change]:
        """Those that go again: others of their commit were refused, or they were and may be right all the same."""
        spilled, texts = self._spill(changes)
        await bodies.put(self._ground.tables, texts, lane=Lane.URGENT)
        again: list[Change] = []
        for packs in packed(spilled, lambda: Commit(self._ground.tables, "apply", self._now)):
            named = [parent for pack in packs for parent in pack.parents]
            parents = await broods.read(self._ground, named) if named else {}
            for start in range(0, len(packs), COMMITS_TOGETHER):
                group = packs[start : start + COMMITS_TOGETHER]
                for left in await asyncio.gather(*(self._commit_pack(pack, parents) for pack in group)):
                    again += left
        return again

    async def _commit_pack(self, pack: Pack, parents: broods.Parents) -> list[Change]:
        made = Plan()
        for change in pack.changes:
            made.follow(change.moved)
        broods.decide(made, parents, self._now)
        made.into(pack.commit)
        return await self._commit(pack.commit, pack.changes, made.marks)

    async def _commit(self, commit: Commit, changes: list[Change], marks: Sequence[Mark] = ()) -> list[Change]:
        try:
            await commit.run(Lane.URGENT)
        except Cancelled as cancelled:
            return await self._judge_again(cancelled, changes)
        self._done(commit, changes)
        if marks:
            with contextlib.suppress(StoreError):  # the marks stand: upkeep goes on from them
                await following.go_on(self._ground, marks, self._now, RELEASE_BATCH_MAX)
        return []

    def _spill(self, changes: list[Change]) -> tuple[list[Change], list[Item]]:
        spilled, texts = [], []
        for change in changes:
            item, records = bodies.spill(items.fit(change.moved.item))
            spilled.append(Change(change.position, change.t, msgspec.structs.replace(change.moved, item=item)))
            texts += records
        return spilled, texts

    async def _judge_again(self, cancelled: Cancelled, changes: list[Change]) -> list[Change]:
        """What stands there decides about those that were refused; nothing of the commit was applied."""
        refused = [change.position for change in changes if cancelled.of_job(change.t.job_id)]
        for job_id in (self._transitions[position].job_id for position in refused):
            self._read.pop(job_id, None)
            if (standing := cancelled.failed[Table.JOBS, (job_id,)]) is not None:
                self._read[job_id] = standing
        await self._read_those(self._transitions[position].job_id for position in refused)
        again, _ = self._judge(refused)
        return [change for change in changes if change.position not in refused] + again

    def _done(self, commit: Commit, changes: list[Change]) -> None:
        self._ground.board.committed(commit.signals)
        for change in changes:
            self.verdicts[change.position] = Verdict.APPLIED
            self._read[change.t.job_id] = self._items[change.t.job_id] = change.moved.item
            self._ground.remembered.drop(change.t.job_id)
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
            changes, _ = self._judge([change.position])  # its texts are whole again, and perhaps it need not go alone
            if not changes:
                return
            [change] = changes

    async def _retry(self, change: Change) -> list[Change]:
        """A job that is to run once more has what it depends on, and its key."""
        again = await retrying.run_again(self._ground, change.moved.was, change.t, self._now)
        if isinstance(again, Verdict):
            self.verdicts[change.position] = again
            return []
        [spilled], texts = self._spill([Change(change.position, change.t, again.moved)])
        commit, made = Commit(self._ground.tables, "apply", self._now), Plan()
        spilled.into(commit)
        commit.write(*again.writes)
        made.follow(spilled.moved)
        await broods.settle(self._ground, made, self._now)
        made.into(commit)
        await bodies.put(self._ground.tables, texts, lane=Lane.URGENT)
        left = await self._commit(commit, [spilled])
        if not left and again.mark is not None and self.verdicts[change.position] is Verdict.APPLIED:
            with contextlib.suppress(StoreError):
                await linking.link(self._ground, again.mark, self._now)
        return left

    async def _end(self, change: Change) -> list[Change]:
        """With all that depend on it, where they fit into its commit; or with a mark from which they are released."""
        ground, now, job_id = self._ground, self._now, change.t.job_id
        [spilled], texts = self._spill([change])
        children = await releasing.unmet(ground, job_id, releasing.TOGETHER_MAX + 1)
        fits = len(children) <= releasing.TOGETHER_MAX
        if fits:
            made = await releasing.plan(ground, change.moved.item, children, now)
            commit = await self._ending(spilled, made)
            fits = commit.takes()
        if not fits:
            made = Plan()
            made.mark(outbox.new_mark(MarkKind.ENDED, job_id, now))
            commit = await self._ending(spilled, made)
        await bodies.put(ground.tables, [*texts, *made.texts], lane=Lane.URGENT)
        return await self._commit(commit, [spilled], made.marks)

    async def _ending(self, change: Change, made: Plan) -> Commit:
        commit = Commit(self._ground.tables, "apply", self._now)
        change.into(commit)
        made.follow(change.moved)
        await broods.settle(self._ground, made, self._now)
        made.into(commit)
        return commit

    async def _bring(self, change: Change) -> list[Change]:
        """With its children, or with a mark from which they are stored."""
        ground, t, now = self._ground, change.t, self._now
        brought = await bringing.prepare(ground, t, now)
        while True:
            moved = moving.applied(self._base(t.job_id), t, now, items.new_wid(), brought.brood)
            if not isinstance(moved, Moved):
                return [change]  # it is judged again
            [spilled], texts = self._spill([Change(change.position, t, moved)])
            made = Plan()
            made.follow(spilled.moved)
            if moved.ended and moved.was.get("awaited"):
                made.mark(outbox.new_mark(MarkKind.ENDED, t.job_id, now))
            await broods.settle(ground, made, now)
            try:
                commit = await brought.commit(ground, [*spilled.writes(), *made.writes], now)
                break
            except TooLarge:
                brought = await bringing.staged(ground, t, now)
        spilled.tell(commit)
        commit.signals |= made.signals
        await bodies.put(ground.tables, texts, lane=Lane.URGENT)
        left = await self._commit(commit, [spilled], made.marks)
        if not left and brought.mark is not None and self.verdicts[change.position] is Verdict.APPLIED:
            with contextlib.suppress(StoreError):
                await unpacking.unpack(ground, brought.mark, now, RELEASE_BATCH_MAX)
        return left

    # What follows

    async def follow(self) -> None:
        """Those that a key or a rate keeps out come into sight; upkeep does it too, so nothing is lost with it."""
        limits = {
            item["concurrency_key"]: item["concurrency_limit"]
            for item in self._items.values()
            if "concurrency_key" in item and "concurrency_limit" in item
        }
        left = set(left_their_place(self._applied))
        found = (parking.bucket_of(item) for job_id, item in self._items.items() if job_id in left)
        buckets = {bucket for bucket in found if bucket is not None}
        if not limits and not buckets:
            return
        with contextlib.suppress(StoreError):
            self._ground.board.committed(await parking.after_leaving(self._ground, limits, buckets, self._now))

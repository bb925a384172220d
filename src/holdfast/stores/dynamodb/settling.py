"""apply: every write of a claim's holder, and of editors and rescuers, with its guards.

    base (remembered, or read) ──▶ moving.applied ──▶ commits of many ──▶ refused: judged again on what stands there
                                                 └──▶ by itself: who ends with dependents, who is retried by hand

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
from holdfast.stores.dynamodb import bodies, gates, items, moving, outbox, parking, releasing, retrying
from holdfast.stores.dynamodb.commit import Cancelled, Commit, Write
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.moving import Moved
from holdfast.stores.dynamodb.outbox import MarkKind
from holdfast.stores.dynamodb.rounds import Rounds
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane
from holdfast.stores.transitions import check_all, left_their_place, signals_of

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


class _Change(msgspec.Struct, frozen=True):
    """A transition on its way into a commit."""

    position: int
    t: Transition
    moved: Moved

    def into(self, commit: Commit) -> None:
        commit.write(*self.writes())
        commit.signals |= signals_of([self.t])
        if self.moved.counted is not None:
            commit.count(self.t.kind, self.moved.counted, 1, self.t.ran_micros, self.t.waited_micros)

    def writes(self) -> list[Write]:
        return [moving.written(self.moved), *(gates.leave(self.moved.was) if self.moved.freed else ())]


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
        alone: list[_Change] = []
        rounds = Rounds("apply")
        while True:
            # After a refusal too: a job may have got a dependent since it was remembered.
            alone += [each for each in changes if _goes_alone(each)]
            together = [each for each in changes if not _goes_alone(each)]
            changes = await self._commit_all(together)
            if not changes:
                break
            await rounds.again()
        for each in alone:  # one after another: two of them may be waited for by the same job
            await self._apply_alone(each)

    async def _decide(self, wave: list[int]) -> list[_Change]:
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

    def _judge(self, positions: Iterable[int]) -> tuple[list[_Change], list[int]]:
        """Those that may be written, and those that only a remembered item speaks against. The others are answered."""
        changes, doubtful = [], []
        for position in positions:
            t = self._transitions[position]
            moved = moving.applied(self._base(t.job_id), t, self._now, items.new_wid())
            if isinstance(moved, Moved):
                changes.append(_Change(position, t, moved))
            elif t.job_id in self._read:
                self.verdicts[position] = moved
            else:
                doubtful.append(position)
        return changes, doubtful

    # Many in one commit

    async def _commit_all(self, changes: list[_Change]) -> list[_Change]:
        """Those that go again: others of their commit were refused, or they were and may be right all the same."""
        packs: list[list[_Change]] = []
        commit = None
        spilled, texts = self._spill(changes)
        await bodies.put(self._ground.tables, texts, lane=Lane.URGENT)
        runs: list[Commit] = []
        for change in spilled:
            if commit is None or not commit.takes(*change.writes()):
                commit = Commit(self._ground.tables, "apply", self._now)
                runs.append(commit)
                packs.append([])
            change.into(commit)
            packs[-1].append(change)
        again: list[_Change] = []
        for start in range(0, len(runs), COMMITS_TOGETHER):
            group = range(start, min(start + COMMITS_TOGETHER, len(runs)))
            for left in await asyncio.gather(*(self._commit(runs[i], packs[i]) for i in group)):
                again += left
        return again

    async def _commit(self, commit: Commit, changes: list[_Change]) -> list[_Change]:
        try:
            await commit.run(Lane.URGENT)
        except Cancelled as cancelled:
            return await self._judge_again(cancelled, changes)
        self._done(commit, changes)
        return []

    def _spill(self, changes: list[_Change]) -> tuple[list[_Change], list[Item]]:
        spilled, texts = [], []
        for change in changes:
            item, records = bodies.spill(items.fit(change.moved.item))
            spilled.append(_Change(change.position, change.t, msgspec.structs.replace(change.moved, item=item)))
            texts += records
        return spilled, texts

    async def _judge_again(self, cancelled: Cancelled, changes: list[_Change]) -> list[_Change]:
        """What stands there decides about those that were refused; nothing of the commit was applied."""
        refused = [change.position for change in changes if cancelled.of_job(change.t.job_id)]
        for job_id in (self._transitions[position].job_id for position in refused):
            self._read.pop(job_id, None)
            if (standing := cancelled.failed[Table.JOBS, (job_id,)]) is not None:
                self._read[job_id] = standing
        await self._read_those(self._transitions[position].job_id for position in refused)
        again, _ = self._judge(refused)
        return [change for change in changes if change.position not in refused] + again

    def _done(self, commit: Commit, changes: list[_Change]) -> None:
        self._ground.board.committed(commit.signals)
        for change in changes:
            self.verdicts[change.position] = Verdict.APPLIED
            self._read[change.t.job_id] = self._items[change.t.job_id] = change.moved.item
            self._ground.remembered.drop(change.t.job_id)
            self._applied.append(change.t)

    # Alone

    async def _apply_alone(self, change: _Change) -> None:
        rounds = Rounds("apply")
        while True:
            if not _goes_alone(change):
                left = await self._commit_all([change])
            elif change.t.event is Event.MANUAL_RETRY:
                left = await self._retry(change)
            else:
                left = await self._end(change)
            if not left:
                return
            await rounds.again()
            changes, _ = self._judge([change.position])  # its texts are whole again, and perhaps it need not go alone
            if not changes:
                return
            [change] = changes

    async def _retry(self, change: _Change) -> list[_Change]:
        """A job that is to run once more has what it depends on, and its key."""
        refusal, guards = await retrying.may_run_again(self._ground, change.moved.was, self._now)
        if refusal is not None:
            self.verdicts[change.position] = refusal
            return []
        commit = Commit(self._ground.tables, "apply", self._now)
        change.into(commit)
        commit.write(*guards)
        return await self._commit(commit, [change])

    async def _end(self, change: _Change) -> list[_Change]:
        """With all that depend on it, where they fit into its commit; or with a mark from which they are released."""
        ground, now, job_id = self._ground, self._now, change.t.job_id
        [spilled], texts = self._spill([change])
        children = await releasing.unmet(ground, job_id, releasing.TOGETHER_MAX + 1)
        commit = Commit(ground.tables, "apply", now)
        spilled.into(commit)
        marks = []
        fits = len(children) <= releasing.TOGETHER_MAX
        if fits:
            made = await releasing.plan(ground, change.moved.item, children, now)
            made.into(commit)
            texts += made.texts
            marks = made.marks
            fits = commit.takes()
        if not fits:
            commit = Commit(ground.tables, "apply", now)
            spilled.into(commit)
            marks = [outbox.new_mark(MarkKind.ENDED, job_id, now)]
            commit.write(outbox.written(marks[0]))
        await bodies.put(ground.tables, texts, lane=Lane.URGENT)
        left = await self._commit(commit, [spilled])
        if not left and self.verdicts[change.position] is Verdict.APPLIED and marks:
            with contextlib.suppress(StoreError):  # it has ended, and the marks stand: upkeep goes on from them
                await releasing.go_on(ground, marks, now, RELEASE_BATCH_MAX)
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


def _goes_alone(change: _Change) -> bool:
    return change.t.event is Event.MANUAL_RETRY or bool(change.moved.ended and change.moved.was.get("awaited"))

"""claim: read the heads of the asked queues and types, let in whom the gates admit, take them.

The indexes propose, a consistent read tells what stands, and one write takes: a plain job by an update that compares
its version, several or such that pass gates by one transaction. So a job has one winner however many have seen it, a
key is never over its limit nor a rate over its bucket, and whoever asks for many gets them together or looks again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

import msgspec

from holdfast.clock import MICROS, Instant
from holdfast.errors import StoreBusy, StoreError, StoreMoved, StoreUnavailable, StoreUnsafe
from holdfast.lifecycle import Status
from holdfast.store.moves import INTO, refusal
from holdfast.store.types import ClaimedJob, ClaimRequest, Signal
from holdfast.stores.dynamodb import bodies, candidates, gates, items, moving, parking, rating, taking_turns
from holdfast.stores.dynamodb.admitting import Admission, Entry, GateStates, looked_again_at
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import Cancelled, Commit, change
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import WORKER, Table
from holdfast.stores.dynamodb.table import Failed
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

log = logging.getLogger("holdfast.stores.dynamodb")

SECONDS = 4.0  # then the claim is left to the next poll
SKEW_SECONDS_MAX = 2.0
_ROUNDS = 20  # each parks what stands in the way, or lost against others; more than this is left to the next claim
_SPARE = 4  # read beyond what is wanted: for those who turn out to be gone, or to have to wait
_SPARE_MAX = 200
_LATE_SECONDS = 1.0  # a claim that waited so long for others of its process begins later


class _Taken(msgspec.Struct):
    items: list[Item]
    cut: bool  # there was more than one commit takes


_NOTHING = _Taken([], False)


class Claims:
    """The claims of one open store: one at a time, so that a process does not race itself."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._one_at_a_time = asyncio.Lock()

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        if request.repeat and (before := await self._claimed_before(request)):
            return await self._answer(sorted(before, key=_claim_order))
        asked_at = asyncio.get_running_loop().time()
        async with self._one_at_a_time:
            waited = asyncio.get_running_loop().time() - asked_at
            if waited > _LATE_SECONDS:
                now += round(waited * MICROS)  # or their leases would be over as much earlier
            taken = await self._take_all(request, now)
            if not taken and await self._has_more(now):
                taken = await self._take_all(request, now)
        return await self._answer(taken)

    async def _has_more(self, now: Instant) -> bool:
        """Woken, and nothing is there: the index may be behind, also behind one who was parked a moment ago."""
        ground = self._ground
        return ground.board.again_if_new(Signal.READY) and await parking.unpark_fresh(ground, now) > 0

    async def _claimed_before(self, request: ClaimRequest) -> list[Item]:
        """What an earlier try of the same request took and still holds."""
        tables, remembered = self._ground.tables, self._ground.remembered
        ids = remembered.tried(request.token)
        ask = Ask(table=Table.JOBS, index=WORKER.name, hash=request.worker_id, begins=Status.PROCESSING.value)
        async for row in tables.ask(ask):
            ids.add(row["job_id"])
        found = await tables.get(Table.JOBS, [(job_id,) for job_id in sorted(ids)])
        return [
            item
            for item in found
            if item is not None
            and item.get("status") == Status.PROCESSING
            and item.get("claim_token") == request.token
            and item.get("worker_id") == request.worker_id
        ]

    async def _answer(self, taken: Sequence[Item]) -> list[ClaimedJob]:
        texts = await bodies.fetch(self._ground.tables, taken, names=("payload", "artifacts"))
        jobs: list[ClaimedJob] = []
        for item in taken:
            try:
                jobs.append(items.claimed(item, bodies.payload(item, texts), bodies.artifacts(item, texts)))
            except bodies.Missing as missing:  # it must neither run without it nor keep the others from running
                log.error("not started, its lease runs out: %s", missing)
        return jobs

    async def _take_all(self, request: ClaimRequest, now: Instant) -> list[Item]:
        """As many as were asked for, in more than one commit where they do not fit."""
        self._refuse_a_wrong_clock()
        taken: list[Item] = []
        until = asyncio.get_running_loop().time() + SECONDS
        while len(taken) < request.limit and any(slots > 0 for slots in request.slots.values()):
            try:
                some = await self._take_some(request, request.limit - len(taken), now, until)
            except StoreError:
                if not taken:
                    raise
                break  # what was taken runs; the rest is for the next claim
            taken += some.items
            if not some.cut:
                break
            request = _fewer(request, some.items)
        return taken

    def _refuse_a_wrong_clock(self) -> None:
        skew = self._ground.tables.wire.skew_seconds
        if skew is not None and abs(skew) > SKEW_SECONDS_MAX:
            raise StoreUnsafe(
                f"this machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} DynamoDB's:"
                " set it right; nothing is claimed until then"
            )

    async def _take_some(self, request: ClaimRequest, limit: int, now: Instant, until: float) -> _Taken:
        ground = self._ground
        spare, crowded = _SPARE, False
        for tries in range(_ROUNDS):
            board = await ground.board.read(fresh=True)
            if board.move is not None and not (board.move.role == INTO and board.move.done):
                raise StoreMoved(refusal(board.move))
            try:
                async with asyncio.timeout_at(until):
                    proposed = await candidates.propose(ground, request, board, limit, spare, crowded)
                    admission, ghosts = await self._admit(request, proposed.entries, limit, spare, now)
            except TimeoutError:
                if tries:
                    break
                raise StoreBusy(f"{ground.tables.shown}: nothing to claim was found within {SECONDS:.0f} s") from None
            if not proposed.entries:
                return _NOTHING
            if ghosts and proposed.more and not admission.is_full and spare < _SPARE_MAX:
                spare *= 4  # the index shows what is gone already: look behind it
                continue
            if admission.admitted:
                taken = await self._take(request, admission, proposed.turns, now)
                if taken is not None:
                    await self._park_quietly(admission, now)
                    return _Taken(taken, admission.cut)
                crowded = True
                await asyncio.sleep(random.uniform(0.005, 0.05))
            elif admission.key_full or admission.over_rate:
                await self._park(admission, now)
                spare = min(4 * spare, _SPARE_MAX)  # behind them may be as many again
            else:
                return _NOTHING
            if asyncio.get_running_loop().time() > until:
                break
        ground.board.committed({Signal.READY})  # there is more behind what was met: whoever is free should come again
        return _NOTHING

    async def _admit(
        self, request: ClaimRequest, entries: Sequence[Entry], limit: int, spare: int, now: Instant
    ) -> tuple[Admission, bool]:
        """Who may start, and whether the index showed any that are gone."""
        states = GateStates()
        admission = Admission(states, limit, request.slots, now)
        ghosts = False
        step = limit + spare
        for start in range(0, len(entries), step):
            chunk = entries[start : start + step]
            heads = await candidates.verified(self._ground, chunk)
            ghosts = ghosts or len(heads) < len(chunk)
            read = await gates.read(self._ground.tables, [head.item for head in heads], now, Lane.IDLE)
            for key, running in read.running.items():
                states.running.setdefault(key, running)
            for bucket, gate in read.rates.items():
                states.rates.setdefault(bucket, gate)
            admission.consider(heads)
            if admission.is_full:
                break
        return admission, ghosts

    # Taking

    async def _take(
        self,
        request: ClaimRequest,
        admission: Admission,
        turns: dict[tuple[str, str], taking_turns.Standing],
        now: Instant,
    ) -> list[Item] | None:
        """All that were admitted, as claimed; None: someone was faster with one of them, or with a gate."""
        ground = self._ground
        admitted = admission.admitted
        ground.remembered.trying(request.token, [head.job_id for head in admitted])
        pairs = [(head.item, items.fit(moving.claimed(head.item, request, now, items.new_wid()))) for head in admitted]
        drawn = admission.drawn()
        try:
            if len(pairs) == 1 and not admission.joins() and not drawn and admitted[0].turn is None:
                await ground.tables.update(change(*pairs[0]), lane=Lane.IDLE, verb="claim")
            else:
                commit = Commit(ground.tables, "claim", now)
                commit.write(*(change(old, new) for old, new in pairs))
                for key, limit, ids in admission.joins():
                    commit.write(gates.enter(key, limit, ids))
                for each in drawn:
                    commit.write(*gates.draw(each, now))
                for lane, standing in turns.items():
                    taken = [head.turn for head in admitted if head.turn is not None and head.turn.lane == lane]
                    if taken:
                        commit.write(*taking_turns.count_turns(lane, standing, taken, now))
                await commit.run(Lane.IDLE, SECONDS)
        except (Failed, Cancelled):
            return None
        if looked_again_at(drawn):
            ground.board.committed({Signal.DUE})
        for _, item in pairs:
            ground.remembered.keep(item)
        return [item for _, item in pairs]

    # Parking

    async def _park(self, admission: Admission, now: Instant) -> None:
        drawn = admission.drawn()
        if drawn and not await rating.save(self._ground, drawn, now, Lane.IDLE):
            return  # others draw from it at this moment: look again
        signals = await parking.park(self._ground, admission.key_full, admission.over_rate, now)
        self._ground.board.committed(signals)

    async def _park_quietly(self, admission: Admission, now: Instant) -> None:
        """After a claim that is stored: whatever happens here, its answer must not be lost."""
        if not admission.key_full and not admission.over_rate:
            return
        try:
            signals = await parking.park(self._ground, admission.key_full, admission.over_rate, now)
        except (StoreBusy, StoreUnavailable):
            return  # the next claim meets them again
        self._ground.board.committed(signals)


def _fewer(request: ClaimRequest, taken: Sequence[Item]) -> ClaimRequest:
    slots = dict(request.slots)
    for item in taken:
        slots[item["job_type"]] -= 1
    return msgspec.structs.replace(request, slots=slots)


def _claim_order(item: Item) -> tuple[int, Instant, str]:
    return -item["priority"], item["scheduled_for"], item["job_id"]

"""`claim` on DynamoDB: reads candidates from the indexes, admits them at the gates, and takes them.

An index may be late: it may still show a claimed job, or not yet show a new one. So the indexes propose, a consistent
read verifies, and one write takes: a plain job by an update that compares its version; several jobs, or jobs that pass
gates, by one transaction. So a job has one winner however many have seen it, a key is never over its limit nor a rate
over its bucket, and a claim of many gets them together or looks again.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import random
from collections import Counter
from collections.abc import Sequence

import msgspec

from backstay.clock import MICROS, Instant
from backstay.core.admission import Admission, Bucket, Gates, RunLimits
from backstay.core.dumps import INTO, refusal
from backstay.core.records import ClaimedJob, ClaimRequest, Lost, Signal
from backstay.core.states import Status
from backstay.engines.dynamodb import admission as dynamodb_admission
from backstay.engines.dynamodb import fairness, items, lanes, parking, schema, transitions
from backstay.engines.dynamodb.admission import CommitRoom, Drawn, Entry, Head, RateGate, looked_again_at
from backstay.engines.dynamodb.board import BoardState
from backstay.engines.dynamodb.commit import Cancelled, Commit
from backstay.engines.dynamodb.expressions import Ask, Condition, absent, at_most, change
from backstay.engines.dynamodb.schema import NO_TIME, READY, WORKER, Item, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.table import Failed
from backstay.engines.dynamodb.transport import Lane
from backstay.engines.lanes import Pair
from backstay.errors import StoreBusy, StoreError, StoreMoved, StoreUnavailable, StoreUnsafe
from backstay.limits import ALONE_COUNTED_MAX, CLAIM_LANES_FEW, CLAIM_ROUNDS_MAX

# shards read at first; more only if these have too few jobs, because claims that read all shards compete for the same
# jobs
SHARDS_AT_ONCE = 1
CROWDED_WINDOW = 4  # a claim that lost a race reads this many times what it wants, to pick jobs that others do not
_TOGETHER = 16  # lanes read concurrently
_PAGE_MAX = 1_000  # rows per query when it filters payload versions that a worker cannot read
_READ_MAX = 4_000  # such rows per lane and claim


class Proposed(msgspec.Struct):
    """The jobs of the requested lanes that the index shows, in claim order."""

    entries: list[Entry]
    turns: dict[tuple[str, str], fairness.LaneState]  # of the lanes that have fairness keys
    more: bool  # a lane had more than was read of it


async def propose(
    session: Session, request: ClaimRequest, board: BoardState, limit: int, spare: int, crowded: bool = False
) -> Proposed:
    """Propose jobs. `spare`: how many more to read than can be claimed, in case some are gone or must wait. `crowded`:
    other claims compete for the same jobs, so a random part of a longer list is proposed first."""
    if request.lost is Lost.ALONE:
        rows, more = await _alone(session, request, board, limit + spare)
        return Proposed([Entry(row["job_id"], row["gq"]) for row in rows], {}, more)
    asked, more = await _lanes(session, request, board)
    found: list[Entry] = []
    of_type: Counter[str] = Counter()
    turns: dict[Pair, fairness.LaneState] = {}
    for start in range(0, len(asked), _TOGETHER):
        batch = asked[start : start + _TOGETHER]
        if _are_enough(request, of_type, limit, spare) and batch[0].head > _last_of(found, limit + spare):
            return Proposed(_in_order(found, limit, crowded and not turns), turns, True)
        wants = [
            min(request.slots[lane.job_type], limit) * (CROWDED_WINDOW if crowded else 1) + spare for lane in batch
        ]
        looks = (_lane(session, request, board, lane.pair, want) for lane, want in zip(batch, wants, strict=True))
        for lane, want, (entries, lane_state) in zip(batch, wants, await asyncio.gather(*looks), strict=True):
            found += entries
            of_type[lane.job_type] += len(entries)
            more = more or len(entries) >= want
            if lane_state is not None:
                turns[lane.pair] = lane_state
    return Proposed(_in_order(found, limit, crowded and not turns), turns, more)


class _Lane(msgspec.Struct, frozen=True):
    queue: str
    job_type: str
    head: str = ""  # no job of the lane has a place before this

    @property
    def pair(self) -> Pair:
        return self.queue, self.job_type


async def _lanes(session: Session, request: ClaimRequest, board: BoardState) -> tuple[list[_Lane], bool]:
    """Return the lanes to look at, and whether there may be others with jobs. Of many, only those that have some, by
    their first job."""
    queues = [queue for queue in dict.fromkeys(request.queues) if not board.is_paused(queue)]
    types = [name for name, slots in request.slots.items() if slots > 0 and not board.is_paused(job_type=name)]
    if len(queues) * len(types) <= CLAIM_LANES_FEW:
        return [_Lane(queue, job_type) for job_type in types for queue in queues], False
    found = await lanes.with_jobs(session, queues, types)
    fair = [_Lane(*pair) for pair in sorted(board.fair) if pair[0] in queues and pair[1] in types]
    plain = [_Lane(*pair, head) for pair, head in found.heads.items() if pair not in board.fair]
    return fair + sorted(plain, key=lambda lane: lane.head), found.is_cut


def _are_enough(request: ClaimRequest, of_type: Counter[str], limit: int, spare: int) -> bool:
    """Return whether the jobs that were found fill the claim, as far as their types have room."""
    usable = sum(min(number, min(request.slots[job_type], limit) + spare) for job_type, number in of_type.items())
    return usable >= limit + spare


def _last_of(entries: Sequence[Entry], number: int) -> str:
    """Return the place of the last that a claim would take."""
    return heapq.nsmallest(number, (entry.order for entry in entries))[-1]


def _in_order(entries: list[Entry], limit: int, crowded: bool) -> list[Entry]:
    found = _each_once(sorted(entries, key=lambda entry: entry.order))
    return _from_a_random_place(found, limit) if crowded else found


def _each_once(entries: list[Entry]) -> list[Entry]:
    """Drop duplicates: an index shows a job at two positions while it changes from one to the other."""
    first: dict[str, Entry] = {}
    for entry in entries:
        first.setdefault(entry.job_id, entry)
    return list(first.values())


def _from_a_random_place(entries: list[Entry], limit: int) -> list[Entry]:
    """Rotate the list to a random start: the order is only approximate then, but a claim for many still gets all there
    are."""
    start = random.randint(0, max(0, len(entries) - limit))
    return entries[start:] + entries[:start]


async def _alone(session: Session, request: ClaimRequest, board: BoardState, want: int) -> tuple[list[Item], bool]:
    """Return the first jobs that must run alone and that this worker can claim, and whether there may be more."""
    rows: list[Item] = []
    seen = 0
    async for row in session.tables.ask(Ask(table=Table.JOBS, index=READY.name, hash=schema.ALONE), lane=Lane.IDLE):
        seen += 1
        newest = request.versions.get(row["job_type"])
        if (
            request.slots.get(row["job_type"], 0) > 0
            and row["queue"] in request.queues
            and not board.is_paused(row["queue"], row["job_type"])
            and (newest is None or row.get("payload_version", 1) <= newest)
        ):
            rows.append(row)
        if len(rows) >= want or seen >= _READ_MAX:
            return rows, True
    return rows, False


async def wait_alone(session: Session, request: ClaimRequest) -> dict[str, int]:
    """Count the first jobs that wait to run alone, by type."""
    board = await session.board.read(fresh=False)
    rows, _ = await _alone(session, request, board, ALONE_COUNTED_MAX)
    return dict(Counter(row["job_type"] for row in rows))


async def _lane(
    session: Session, request: ClaimRequest, board: BoardState, pair: Pair, want: int
) -> tuple[list[Entry], fairness.LaneState | None]:
    queue, job_type = pair
    readable = readable_by(request.versions.get(job_type))
    if request.lost is Lost.NONE:
        unsuspected = absent("suspicion")
        readable = unsuspected if readable is None else readable & unsuspected
    rows = await plain(session, queue, job_type, want, readable)
    if pair not in board.fair:
        return [Entry(row["job_id"], row["gq"]) for row in rows], None
    lane_state = await fairness.read(session, queue, job_type)
    return await fairness.heads(session, pair, rows, want, readable, lane_state), lane_state


def readable_by(version: int | None) -> Condition | None:
    """Return the condition for payload versions that a worker can read; version 1 is not stored."""
    return None if version is None else absent("payload_version") | at_most("payload_version", version)


class _Patience(msgspec.Struct):
    """How many more rows a claim reads in a lane whose jobs are too new for it."""

    rows: int


async def plain(session: Session, queue: str, job_type: str, want: int, readable: Condition | None) -> list[Item]:
    """Return the first jobs of a lane without a fairness key, in order within the shards that were read, each with its
    place in the lane as `gq`."""
    lane = schema.in_lane(queue) + schema.in_lane(job_type)
    start = random.randrange(session.shards)
    shards = [(start + i) % session.shards for i in range(session.shards)]
    rows: list[Item] = []
    patience = _Patience(_READ_MAX)
    while shards and len(rows) < want:
        asked, shards = shards[:SHARDS_AT_ONCE], shards[SHARDS_AT_ONCE:]
        for each in await asyncio.gather(*(_shard(session, shard, lane, want, readable, patience) for shard in asked)):
            rows += [{**row, "gq": row["gq"].removeprefix(lane)} for row in each]
        rows.sort(key=lambda row: str(row["gq"]))
    return rows[:want]


async def _shard(
    session: Session, shard: int, lane: str, want: int, readable: Condition | None, patience: _Patience
) -> list[Item]:
    """Return the first jobs of a shard. If many are too new for this worker, the next claim continues where this one
    ended, so that jobs behind them are found eventually, at a bounded cost."""
    rows: list[Item] = []
    left_off, memory = session.remembered.left_off, f"{lane}{shard}"
    page, above = want, None
    while True:
        ask = Ask(
            table=Table.JOBS,
            index=READY.name,
            hash=schema.ready_hash(shard),
            begins=lane,
            above=above,
            page=page,
            where=readable,
        )
        found, then = await session.tables.page(ask, lane=Lane.IDLE)
        rows += found
        if len(rows) >= want:
            return rows[:want]
        if then is None:
            left_off.pop(memory, None)
            return rows
        patience.rows -= page
        above = str(then["gq"])
        if patience.rows <= 0:
            left_off[memory] = above
            return rows
        if page >= _PAGE_MAX // 4:
            above = max(above, left_off.get(memory, ""))
        page = min(4 * page, _PAGE_MAX)


async def verified(session: Session, entries: Sequence[Entry], lost: Lost, now: Instant) -> list[Head]:
    """Return the jobs that are still as the index shows them, read consistently, and have not expired."""
    items = await session.tables.get(Table.JOBS, [(entry.job_id,) for entry in entries], lane=Lane.IDLE)
    return [
        Head(item, entry.turn)
        for entry, item in zip(entries, items, strict=True)
        if item is not None
        and item.get("status") == Status.PENDING
        and "parked" not in item
        and lost.may_bring(item.get("suspicion", 0))
        and item.get("expires_at", NO_TIME) > now
    ]


log = logging.getLogger("backstay.engines.dynamodb")

SECONDS = 4.0  # beyond this, the claim is left to the next poll
SKEW_SECONDS_MAX = 2.0
_SPARE = 4  # read in addition, in case some are gone or must wait
_SPARE_MAX = 200
_LATE_SECONDS = 1.0  # a claim that waited this long for others of its process uses a later time


class _Taken(msgspec.Struct):
    items: list[Item]
    cut: bool  # there were more than fit into one commit


_NOTHING = _Taken([], False)


class Claims:
    """The claims of one open store: one at a time, so that a process does not race itself."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._one_at_a_time = asyncio.Lock()

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        if request.repeat and (before := await self._claimed_before(request)):
            return await self._answer(sorted(before, key=_claim_order))
        asked_at = asyncio.get_running_loop().time()
        async with self._one_at_a_time:
            waited = asyncio.get_running_loop().time() - asked_at
            if waited > _LATE_SECONDS:
                now += round(waited * MICROS)  # otherwise their leases would expire that much earlier
            taken = await self._take_all(request, now)
            if not taken and await self._has_more(now):
                taken = await self._take_all(request, now)
        return await self._answer(taken)

    async def _has_more(self, now: Instant) -> bool:
        """Return whether to claim again after a signal without jobs: the index may lag, also behind a job that was just
        parked."""
        session = self._session
        return session.board.again_if_new(Signal.READY) and await parking.unpark_fresh(session, now) > 0

    async def _claimed_before(self, request: ClaimRequest) -> list[Item]:
        """Return what an earlier try of the same request claimed and still holds."""
        tables, remembered = self._session.tables, self._session.remembered
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
        texts = await items.fetch(self._session.tables, taken, names=("payload", "artifacts"))
        jobs: list[ClaimedJob] = []
        for item in taken:
            try:
                jobs.append(items.claimed(item, items.payload(item, texts), items.artifacts(item, texts)))
            except items.Missing as missing:  # the job must neither run without it nor block the others
                log.error("not started, its lease will expire: %s", missing)
        return jobs

    async def _take_all(self, request: ClaimRequest, now: Instant) -> list[Item]:
        """Claim as many as requested, in several commits if they do not fit into one."""
        self._refuse_a_wrong_clock()
        taken: list[Item] = []
        until = asyncio.get_running_loop().time() + SECONDS
        while len(taken) < request.limit and any(slots > 0 for slots in request.slots.values()):
            try:
                some = await self._take_some(request, request.limit - len(taken), now, until)
            except StoreError:
                if not taken:
                    raise
                break  # return what was claimed; the rest is left to the next claim
            taken += some.items
            if not some.cut:
                break
            request = _fewer(request, some.items)
        return taken

    def _refuse_a_wrong_clock(self) -> None:
        skew = self._session.tables.wire.skew_seconds
        if skew is not None and abs(skew) > SKEW_SECONDS_MAX:
            raise StoreUnsafe(
                f"this machine's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} DynamoDB's:"
                " correct it; nothing is claimed until then"
            )

    async def _take_some(self, request: ClaimRequest, limit: int, now: Instant, until: float) -> _Taken:
        session = self._session
        spare, crowded = _SPARE, False
        for tries in range(CLAIM_ROUNDS_MAX):
            board = await session.board.read(fresh=True)
            if board.move is not None and not (board.move.role == INTO and board.move.done):
                raise StoreMoved(refusal(board.move))
            try:
                async with asyncio.timeout_at(until):
                    proposed = await propose(session, request, board, limit, spare, crowded)
                    decided, drawn, ghosts = await self._admit(request, proposed, limit, spare, board, now)
            except TimeoutError:
                if tries:
                    break
                raise StoreBusy(f"{session.tables.shown}: nothing to claim was found within {SECONDS:.0f} s") from None
            if not proposed.entries:
                return _NOTHING
            if ghosts and proposed.more and not decided.is_full and spare < _SPARE_MAX:
                spare *= 4  # the index shows jobs that are gone: read further
                continue
            if decided.started:
                taken = await self._take(request, decided, drawn, proposed.turns, board.run_limits, now)
                if taken is not None:
                    await self._park_quietly(decided, now)
                    return _Taken(taken, decided.cut)
                crowded = True
                await asyncio.sleep(random.uniform(0.005, 0.05))
            elif decided.parks:
                await self._park(decided, drawn, now)
                spare = min(4 * spare, _SPARE_MAX)  # there may be as many again behind them
            else:
                if not await parking.drop_dead_of_types(session, board.run_limits, request.slots, now):
                    return _NOTHING
            if asyncio.get_running_loop().time() > until:
                break
        session.board.committed({Signal.READY})  # there are more jobs behind these: free workers should claim again
        return _NOTHING

    async def _admit(
        self, request: ClaimRequest, proposed: Proposed, limit: int, spare: int, board: BoardState, now: Instant
    ) -> tuple[Admission[Head], list[Drawn], bool]:
        """Return which jobs may start, how their buckets change, and whether the index showed any jobs that are
        gone."""
        gates = Gates(turns={**proposed.turns}, limits=board.run_limits)
        rates: dict[Bucket, RateGate] = {}
        decided = Admission(gates, limit, request.slots, now, CommitRoom(gates.limits).fits)
        ghosts = False
        step = limit + spare
        for start in range(0, len(proposed.entries), step):
            chunk = proposed.entries[start : start + step]
            heads = await verified(self._session, chunk, request.lost, now)
            ghosts = ghosts or len(heads) < len(chunk)
            await dynamodb_admission.read_missing(self._session.tables, gates, rates, heads, now)
            decided.consider(heads)
            if decided.is_full:
                break
        return decided, dynamodb_admission.drawn(decided, rates, now), ghosts

    # Taking

    async def _take(
        self,
        request: ClaimRequest,
        decided: Admission[Head],
        drawn: Sequence[Drawn],
        lanes: dict[Pair, fairness.LaneState],
        limits: RunLimits,
        now: Instant,
    ) -> list[Item] | None:
        """Claim all admitted jobs; None if another claim was faster with one of them or with a gate."""
        session, started = self._session, decided.started
        session.remembered.trying(request.token, [head.job_id for head in started])
        pairs = [(head.item, _claimed(head, request, limits, now)) for head in started]
        entries, turns = dynamodb_admission.entries(started, limits), decided.turns()
        entered = dynamodb_admission.types_entered(started, limits)
        try:
            if len(pairs) == 1 and not entries and not entered and not drawn and not turns:
                await session.tables.update(change(*pairs[0]), lane=Lane.IDLE, verb="claim")
            else:
                commit = Commit(session.tables, "claim", now)
                commit.write(*(change(old, new) for old, new in pairs))
                for key, limit, ids in entries:
                    commit.write(dynamodb_admission.enter(key, limit, ids))
                commit.write(*entered)
                for each in drawn:
                    commit.write(*dynamodb_admission.draw(each, now))
                for lane, reached in turns.items():
                    commit.write(*fairness.count_turns(lane, lanes[lane], reached, now))
                await commit.run(Lane.IDLE, SECONDS)
        except (Failed, Cancelled):
            return None
        if looked_again_at(drawn):
            session.board.committed({Signal.DUE})
        for _, item in pairs:
            session.remembered.keep(item)
        return [item for _, item in pairs]

    # Parking

    async def _park(self, decided: Admission[Head], drawn: Sequence[Drawn], now: Instant) -> None:
        if drawn and not await parking.save(self._session, drawn, now, Lane.IDLE):
            return  # another claim draws from it at the same moment: read again
        signals = await parking.park(self._session, decided, now)
        self._session.board.committed(signals)

    async def _park_quietly(self, decided: Admission[Head], now: Instant) -> None:
        """Park jobs after a committed claim, ignoring errors: the answer of the claim must not be lost."""
        if not decided.parks:
            return
        try:
            signals = await parking.park(self._session, decided, now)
        except (StoreBusy, StoreUnavailable):
            return  # the next claim finds them again
        self._session.board.committed(signals)


def _claimed(head: Head, request: ClaimRequest, limits: RunLimits, now: Instant) -> Item:
    gated = dynamodb_admission.is_gated(head.job_type, limits)
    return items.fit(transitions.claimed(head.item, request, now, items.new_wid(), gated=gated))


def _fewer(request: ClaimRequest, taken: Sequence[Item]) -> ClaimRequest:
    slots = dict(request.slots)
    for item in taken:
        slots[item["job_type"]] -= 1
    return msgspec.structs.replace(request, slots=slots)


def _claim_order(item: Item) -> tuple[int, Instant, str]:
    return -item["priority"], item["scheduled_for"], item["job_id"]

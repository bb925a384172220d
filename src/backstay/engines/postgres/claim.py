"""`claim` on PostgreSQL: one statement if no limits or turns apply, else the heads of the lanes first.

Of many lanes, some are claimed from at a time: those whose first jobs come first. What they hold beyond the first job
of the next lane is left for later, so that the order is that of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core.records import ClaimedJob, ClaimRequest, Lost, Rate, Signal
from backstay.engines.lanes import FAIR, PLAIN, Asked, Lane, Order, Pair, Row
from backstay.engines.places import token_key
from backstay.engines.postgres import admission, release
from backstay.engines.postgres.connection import Tx
from backstay.engines.postgres.read import BY_KEY, BY_RATE
from backstay.limits import ALONE_COUNTED_MAX, CLAIM_LANES_FEW, CLAIM_LANES_MAX

_ANY_VERSION = 2**31 - 1
PARK_ROUNDS = 20  # each round parks jobs that cannot start; more rounds are left to the next claim
# Columns of a candidate, as returned by the statements candidates and fair_head: its id, where its row is, its keys.
_ID, _AT, _KEY, _LIMIT, _RATE_KEY, _RATE_COUNT, _RATE_MICROS, _FAIRNESS = 2, 3, 4, 5, 6, 7, 8, 9
Candidate = list[Any]
_TURNS_AT_ONCE = 4  # lanes that take turns in one claim of many: each takes some statements of its own


class Part(msgspec.Struct, frozen=True):
    """Lanes that are claimed from at once; `until`: the first job of the next one, if there are more."""

    lanes: Sequence[Lane]
    until: Order | None = None

    @property
    def may_be_plain(self) -> bool:
        return all(lane.kinds <= {PLAIN} for lane in self.lanes)


async def lanes(tx: Tx, asked: Asked, at: Pair) -> list[Row]:
    rows = await tx.rows("lanes", asked.queues, asked.types, *at, CLAIM_LANES_MAX)
    return [tuple(row) for row in rows]


def parts(page: Sequence[Lane]) -> Iterator[Part]:
    """Yield the lanes of a page, which are sorted by their first jobs, as many at a time as one claim looks at."""
    start = turns = 0
    for place, lane in enumerate(page):
        turns += FAIR in lane.kinds
        if place - start == CLAIM_LANES_FEW or turns > _TURNS_AT_ONCE:
            yield Part(page[start:place], lane.head)
            start, turns = place, int(FAIR in lane.kinds)
    if start < len(page):
        yield Part(page[start:])


async def claim_plain(
    tx: Tx, request: ClaimRequest, part: Part, store_now: Instant | None, repeat: bool
) -> list[ClaimedJob] | None:
    """Claim jobs in one statement; None if keys have to be checked, which takes a transaction."""
    if (request.repeat or repeat) and (before := await _claimed_before(tx, request)):
        return before
    if not part.lanes:
        return []
    columns = _columns(request, part.lanes)
    claimant = token_key(request.token), request.worker_id, request.worker_version, request.lease_micros, store_now
    asked = (*columns, request.limit, *claimant, request.lost.suspicion_max)
    if len(part.lanes) == 1:
        taken = await tx.rows("claim_lane", *asked)
    else:
        taken = await tx.rows("claim_plain", *asked, *(part.until or (None, None, None)))
    if not taken and await tx.value("keyed_any", *columns[:2]):
        return None
    jobs = _in_order([ClaimedJob(*row) for row in taken])
    if len(part.lanes) > 1:
        _offer_the_rest(tx, request, jobs)
    return jobs


async def claim_keyed(
    tx: Tx, request: ClaimRequest, part: Part, clock: Callable[[], Awaitable[Instant]], repeat: bool
) -> list[ClaimedJob] | None:
    """Claim jobs with keys; None if all that were found had to be parked: there may be more behind them. Those are
    claimed in another transaction, because locking further keys after the first ones could deadlock with a claim that
    locks them in the other order."""
    if (request.repeat or repeat) and (before := await _claimed_before(tx, request)):
        return before
    chosen, parked, now = await _choose(tx, request, part, clock)
    if not chosen:
        return None if parked else []
    taken = await tx.rows(
        "claim_these",
        [candidate[_AT] for candidate in chosen],
        token_key(request.token),
        request.worker_id,
        request.worker_version,
        request.lease_micros,
        now,
    )
    turns = {candidate[_ID]: turn for turn, candidate in enumerate(chosen)}
    jobs = sorted((ClaimedJob(*row) for row in taken), key=lambda job: turns[job.job_id])
    _offer_the_rest(tx, request, jobs)
    return jobs


def _offer_the_rest(tx: Tx, request: ClaimRequest, jobs: list[ClaimedJob]) -> None:
    """Signal other workers: a claim that ended at a limit may have locked more jobs than it took. Claims that skipped
    the locked ones would otherwise sleep for a poll interval."""
    taken = Counter(job.job_type for job in jobs)
    if len(jobs) == request.limit or any(count == request.slots[job_type] for job_type, count in taken.items()):
        tx.signals.add(Signal.READY)


async def _claimed_before(tx: Tx, request: ClaimRequest) -> list[ClaimedJob]:
    return _in_order(
        [ClaimedJob(*row) for row in await tx.rows("claimed_before", request.worker_id, token_key(request.token))]
    )


def _in_order(jobs: list[ClaimedJob]) -> list[ClaimedJob]:
    jobs.sort(key=lambda job: (-job.priority, job.scheduled_for, job.job_id))
    return jobs


def _columns(request: ClaimRequest, lanes: Sequence[Lane]) -> list[list[Any]]:
    """Return queues, types, slots and versions of the lanes."""
    return [
        [lane.queue for lane in lanes],
        [lane.job_type for lane in lanes],
        [min(request.slots[lane.job_type], request.limit) for lane in lanes],
        [request.versions.get(lane.job_type, _ANY_VERSION) for lane in lanes],
    ]


async def _choose(
    tx: Tx, request: ClaimRequest, part: Part, clock: Callable[[], Awaitable[Instant]]
) -> tuple[list[Candidate], bool, Instant]:
    """Return the jobs to claim, whether others were parked, and when they were chosen."""
    heads = await (_alone(tx, request) if request.lost is Lost.ALONE else _shared(tx, request, part))
    await _lock_keys(tx, heads)
    now = await clock()  # after all waiting: a run does not begin before the one that it waited for has ended
    admitted, key_full, over_rate = await _admit(tx, heads, request.limit, now)
    for parked, by_what in ((key_full, BY_KEY), (over_rate, BY_RATE)):
        if parked:
            await tx.execute("park", [each[_AT] for each in parked], by_what)
    await admission.left_sight(tx, {each[_RATE_KEY] for each in key_full if each[_RATE_KEY] is not None}, now)
    await _take_turns(tx, admitted, now)
    return admitted, bool(key_full or over_rate), now


async def _shared(tx: Tx, request: ClaimRequest, part: Part) -> list[Candidate]:
    """Return the first jobs of the lanes that are not paused."""
    paused = {row[0] for row in await tx.rows("paused")}
    heads = await _heads(tx, request, [lane for lane in part.lanes if lane.queue not in paused])
    if part.until is None:
        return heads
    # Of a lane that takes turns only one job was seen: if all have turned out to be later, they are no worse.
    return [head for head in heads if _order(head) <= part.until] or heads


# Jobs that run alone


async def _alone(tx: Tx, request: ClaimRequest) -> list[Candidate]:
    """Return the first of them over all requested queues and types, each type within its slots."""
    left = dict(request.slots)
    found: list[Candidate] = []
    for *candidate, job_type in await tx.rows("alone_candidates", *_asked(request), request.limit):
        if left[job_type] > 0:
            left[job_type] -= 1
            found.append(candidate)
    return found


async def wait_alone(tx: Tx, request: ClaimRequest) -> dict[str, int]:
    rows = await tx.rows("wait_alone", *_asked(request), ALONE_COUNTED_MAX)
    return {row[0]: row[1] for row in rows}


def _asked(request: ClaimRequest) -> tuple[list[str], list[str], list[int]]:
    """Return the queues, and the types with the newest version that is read of each."""
    types = [name for name, slots in request.slots.items() if slots > 0]
    return list(request.queues), types, [request.versions.get(name, _ANY_VERSION) for name in types]


async def _heads(tx: Tx, request: ClaimRequest, lanes: Sequence[Lane]) -> list[Candidate]:
    """Return the first jobs of all requested lanes, each type within its slots."""
    columns = _columns(request, lanes)
    turns = {(queue, job_type) for queue, job_type in await tx.rows("fair_any", *columns[:2])}
    await admission.hold(tx, sorted(turns))
    by_type: dict[str, list[Candidate]] = {}
    suspicion_max = request.lost.suspicion_max
    for queue, job_type, limit, version in zip(*columns, strict=True):
        if (queue, job_type) in turns:
            for *candidate, key, weight in await admission.heads(tx, queue, job_type, limit, (version, suspicion_max)):
                by_type.setdefault(job_type, []).append([*candidate, (queue, job_type, key, weight)])
    if plain := [lane for lane in lanes if (lane.queue, lane.job_type) not in turns]:
        for line in (0, 1):
            for job_type, *candidate in await tx.rows("lane_heads", *_columns(request, plain), suspicion_max, line):
                by_type.setdefault(job_type, []).append(candidate)
    found: list[Candidate] = []
    for job_type, candidates in by_type.items():
        candidates.sort(key=_order)
        found += candidates[: min(request.slots[job_type], request.limit)]
    found.sort(key=_order)
    return found  # perhaps more than can be claimed: jobs of one type that must wait must not hide those of another


def _order(candidate: Candidate) -> tuple[int, Instant, str]:
    # Jobs that take turns are one block with one due time: later sorting must not change their order.
    return -candidate[0], candidate[1], "" if len(candidate) > _FAIRNESS else candidate[2]


async def _lock_keys(tx: Tx, heads: list[Candidate]) -> None:
    """Lock the names of keys until the commit, so that two claims cannot both take the last place."""
    names = {release.name_of(head[_KEY]) for head in heads if head[_KEY] is not None}
    names |= {admission.name_of(head[_RATE_KEY]) for head in heads if head[_RATE_KEY] is not None}
    if names:
        await tx.rows("lock_names", sorted(names))


async def _admit(
    tx: Tx, heads: list[Candidate], limit: int, now: Instant
) -> tuple[list[Candidate], list[Candidate], list[Candidate]]:
    """Split the jobs by whether their concurrency key and rate key have room, until there are enough."""
    busy: dict[str, int] = {}  # how many of a key run; each job has a limit of its own
    buckets = admission.Buckets(tx, now)
    admitted: list[Candidate] = []
    key_full: list[Candidate] = []
    over_rate: list[Candidate] = []
    for head in heads:
        if len(admitted) == limit:
            break
        key, rate_key = head[_KEY], head[_RATE_KEY]
        if key is not None and head[_LIMIT] is not None:
            if key not in busy:
                busy[key] = await release.running(tx, key)
            if busy[key] >= head[_LIMIT]:
                key_full.append(head)
                continue
        if rate_key is not None and not await buckets.admit((rate_key, Rate(head[_RATE_COUNT], head[_RATE_MICROS]))):
            over_rate.append(head)
            continue
        if key in busy:
            busy[key] += 1
        admitted.append(head)
    await buckets.write()
    return admitted, key_full, over_rate


async def _take_turns(tx: Tx, admitted: list[Candidate], now: Instant) -> None:
    lanes: dict[tuple[str, str], list[tuple[str, int]]] = {}
    for candidate in admitted:
        if len(candidate) > _FAIRNESS:
            queue, job_type, key, weight = candidate[_FAIRNESS]
            lanes.setdefault((queue, job_type), []).append((key, weight))
    for (queue, job_type), taken in lanes.items():
        await admission.count_turns(tx, queue, job_type, taken, now)

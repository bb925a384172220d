"""`claim` on PostgreSQL: one statement if no limits or turns apply, else the heads of the lanes first.

Of many lanes, some are claimed from at a time: those whose first jobs come first. What they hold beyond the first job
of the next lane is left for later, so that the order is that of all of them.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core.admission import BY_KEY, BY_RATE, Admission, Gates, LaneTurns
from backstay.core.records import ClaimedJob, ClaimRequest, Lost, Signal
from backstay.engines.lanes import FAIR, PLAIN, Asked, Lane, Order, Pair, Row, order
from backstay.engines.places import token_key
from backstay.engines.postgres import admission, release
from backstay.engines.postgres.connection import Candidate, Tx
from backstay.engines.postgres.heads import DEAD_ROWS_MIN, SLOW_SECONDS, Heads
from backstay.limits import ALONE_COUNTED_MAX, CLAIM_LANES_FEW, CLAIM_LANES_MAX

_ANY_VERSION = 2**31 - 1
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
    return [Row(*row) for row in rows]


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
    tx: Tx, request: ClaimRequest, part: Part, store_now: Instant | None, repeat: bool, heads: Heads
) -> list[ClaimedJob] | None:
    """Claim jobs in one statement; None if keys have to be checked, which takes a transaction."""
    if (request.repeat or repeat) and (before := await _claimed_before(tx, request)):
        return before
    if not part.lanes:
        return []
    columns = _columns(request, part.lanes)
    claimant = token_key(request.token), request.worker_id, request.worker_version, request.lease_micros, store_now
    asked = (request.limit, *claimant, request.lost.suspicion_max)
    begins = heads.begins(request, part.lanes) if part.until is None else None
    began = time.monotonic()
    if begins is not None:
        taken = await tx.rows("claim_behind", *columns, *asked, *(list(each) for each in zip(*begins, strict=True)))
    elif len(part.lanes) == 1:
        taken = await tx.rows("claim_lane", *(column[0] for column in columns), *asked)
    else:
        taken = await tx.rows("claim_plain", *columns, *asked, *(part.until or (None, None, None)))
    if begins is None and part.until is None:
        is_slow = time.monotonic() - began > SLOW_SECONDS
        heads.looked(is_slow=is_slow and await tx.value("dead_in_line") > DEAD_ROWS_MIN)
    if not taken and await tx.value("keyed_any", *columns[:2]):
        return None
    jobs = _in_order(taken)
    heads.took(request, jobs)
    if len(part.lanes) > 1:
        _offer_the_rest(tx, request, jobs)
    return jobs


async def claim_keyed(
    tx: Tx,
    request: ClaimRequest,
    part: Part,
    store_now: Instant | None,
    clock: Callable[[], Awaitable[Instant]],
    repeat: bool,
) -> list[ClaimedJob] | None:
    """Claim jobs with keys; None if all that were found had to be parked: there may be more behind them. Those are
    claimed in another transaction, because locking further keys after the first ones could deadlock with a claim that
    locks them in the other order."""
    if (request.repeat or repeat) and (before := await _claimed_before(tx, request)):
        return before
    chosen, parked, now = await _choose(tx, request, part, store_now, clock)
    if not chosen:
        return None if parked else []
    taken = await tx.rows(
        "claim_these",
        [candidate.at for candidate in chosen],
        token_key(request.token),
        request.worker_id,
        request.worker_version,
        request.lease_micros,
        now,
    )
    places = {candidate.job_id: place for place, candidate in enumerate(chosen)}
    jobs = sorted(_jobs(taken), key=lambda job: places[job.job_id])
    _offer_the_rest(tx, request, jobs)
    return jobs


def _offer_the_rest(tx: Tx, request: ClaimRequest, jobs: list[ClaimedJob]) -> None:
    """Signal other workers: a claim that ended at a limit may have locked more jobs than it took. Claims that skipped
    the locked ones would otherwise sleep for a poll interval."""
    taken = Counter(job.job_type for job in jobs)
    if len(jobs) == request.limit or any(count == request.slots[job_type] for job_type, count in taken.items()):
        tx.signals.add(Signal.READY)


async def _claimed_before(tx: Tx, request: ClaimRequest) -> list[ClaimedJob]:
    return _in_order(await tx.rows("claimed_before", request.worker_id, token_key(request.token)))


def _jobs(rows: Sequence[Any]) -> list[ClaimedJob]:
    return [ClaimedJob(*row[:]) for row in rows]  # a slice is a tuple: to walk the driver's rows takes twice as long


def _in_order(rows: Sequence[Any]) -> list[ClaimedJob]:
    jobs = _jobs(rows)
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
    tx: Tx, request: ClaimRequest, part: Part, store_now: Instant | None, clock: Callable[[], Awaitable[Instant]]
) -> tuple[list[Candidate], bool, Instant]:
    """Return the jobs to claim, whether others were parked, and when they were chosen."""
    gates = Gates()
    paused, anything_set = await _paused(tx)
    if request.lost is Lost.ALONE:
        heads = await _alone(tx, request, store_now)
    else:
        heads = await _shared(tx, request, part, paused, gates.turns, store_now)
    if anything_set:
        gates.limits = await admission.in_force(tx, _names(heads))
    keys, buckets = gates.missing(heads)
    types = gates.limited_types(heads)
    # Locked until the commit, so that two claims cannot both take the last place.
    names = {release.name_of(key) for key in keys} | {admission.name_of(bucket.key) for bucket in buckets}
    names |= {release.name_of_type(job_type) for job_type in types}
    if names:
        await tx.rows("lock_names", sorted(names))
    now = await clock()  # after all waiting: a run does not begin before the one that it waited for has ended
    gates.running, gates.levels = await release.running(tx, keys), await admission.levels(tx, buckets, now)
    gates.of_type = await release.running_of_types(tx, types)
    decided: Admission[Candidate] = Admission(gates, request.limit, request.slots, now)
    decided.consider(heads)
    await _write(tx, decided, now)
    return decided.started, decided.parks, now


async def _write(tx: Tx, decided: Admission[Candidate], now: Instant) -> None:
    for draw in decided.draws():
        await admission.save(tx, draw.bucket, draw.level, now)
    await admission.count_turns(tx, decided.turns(), now)
    for parked, by_what in ((decided.key_full, BY_KEY), (decided.over_rate, BY_RATE)):
        if parked:
            await tx.execute("park", [each.at for each in parked], by_what)
    await admission.left_sight(tx, {bucket.key for bucket in decided.left_sight()}, now, gone=False)


async def _paused(tx: Tx) -> tuple[set[str], bool]:
    """Return the queues that are paused, and whether anything was set at run time."""
    found = await tx.column("paused")
    return {name for name in found if name is not None}, None in found


def _names(heads: Sequence[Candidate]) -> set[str]:
    """Return the names of everything that something could have been set for at run time."""
    named = ((head.job_type, head.concurrency_key, head.rate_key) for head in heads)
    return {name for names in named for name in names if name is not None}


async def _shared(
    tx: Tx,
    request: ClaimRequest,
    part: Part,
    paused: set[str],
    turns: dict[Pair, LaneTurns],
    store_now: Instant | None,
) -> list[Candidate]:
    """Return the first jobs of the lanes whose queues are not paused."""
    heads = await _heads(tx, request, [lane for lane in part.lanes if lane.queue not in paused], turns, store_now)
    if part.until is None:
        return heads
    # Of a lane that takes turns only one job was seen: if all have turned out to be later, they are no worse.
    return [head for head in heads if order(head) <= part.until] or heads


# Jobs that run alone


async def _alone(tx: Tx, request: ClaimRequest, store_now: Instant | None) -> list[Candidate]:
    """Return the first of them over all requested queues and types."""
    rows = await tx.rows("alone_candidates", *_asked(request), request.limit, store_now)
    return [Candidate(*row) for row in rows]


async def wait_alone(tx: Tx, request: ClaimRequest) -> dict[str, int]:
    return dict(await tx.rows("wait_alone", *_asked(request), ALONE_COUNTED_MAX))


def _asked(request: ClaimRequest) -> tuple[list[str], list[str], list[int]]:
    """Return the queues, and the types with the newest version that is read of each."""
    types = [name for name, slots in request.slots.items() if slots > 0]
    return list(request.queues), types, [request.versions.get(name, _ANY_VERSION) for name in types]


async def _heads(
    tx: Tx, request: ClaimRequest, lanes: Sequence[Lane], turns: dict[Pair, LaneTurns], store_now: Instant | None
) -> list[Candidate]:
    """Return the first jobs of all requested lanes, each type within its slots."""
    columns = _columns(request, lanes)
    fair = {(queue, job_type) for queue, job_type in await tx.rows("fair_any", *columns[:2])}
    await admission.hold(tx, sorted(fair))
    candidates: list[Candidate] = []
    suspicion_max = request.lost.suspicion_max
    for queue, job_type, limit, version in zip(*columns, strict=True):
        if (queue, job_type) in fair:
            candidates += await admission.heads(tx, queue, job_type, limit, (version, suspicion_max, store_now), turns)
    if plain := [lane for lane in lanes if (lane.queue, lane.job_type) not in fair]:
        for line in (0, 1):
            rows = await tx.rows("lane_heads", *_columns(request, plain), suspicion_max, line, store_now)
            candidates += [Candidate(*row) for row in rows]
    candidates.sort(key=order)
    # Perhaps more than can be claimed: jobs of one type that must wait must not hide those of another.
    given: Counter[str] = Counter()
    found: list[Candidate] = []
    for candidate in candidates:
        if given[candidate.job_type] < min(request.slots[candidate.job_type], request.limit):
            given[candidate.job_type] += 1
            found.append(candidate)
    return found

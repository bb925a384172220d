"""`claim` on PostgreSQL: one statement if no limits or turns apply, else the heads of the lanes one by one."""

from __future__ import annotations

from collections import Counter
from typing import Any

from backstay.clock import Instant
from backstay.core.records import ClaimedJob, ClaimRequest, Rate, Signal
from backstay.engines.postgres import admission, release
from backstay.engines.postgres.connection import Tx

_ANY_VERSION = 2**31 - 1
PARK_ROUNDS = 20  # each round parks jobs that cannot start; more rounds are left to the next claim
# Columns of a candidate, as returned by the statements candidates and fair_head.
_ID, _SEQ, _KEY, _LIMIT, _RATE_KEY, _RATE_COUNT, _RATE_MICROS, _FAIRNESS = 2, 3, 4, 5, 6, 7, 8, 9
Candidate = list[Any]
Lane = tuple[str, str, int, int]  # queue, type, slots, version


async def claim_plain(
    tx: Tx, request: ClaimRequest, store_now: Instant | None, repeat: bool
) -> list[ClaimedJob] | None:
    """Claim jobs in one statement; None if keys have to be checked, which takes a transaction."""
    if (request.repeat or repeat) and (before := await _claimed_before(tx, request)):
        return before
    lanes = _lanes(request)
    if not lanes:
        return []
    queues, types, slots, versions = (list(column) for column in zip(*lanes, strict=True))
    taken = await tx.rows(
        "claim_lane" if len(lanes) == 1 else "claim_plain",
        queues,
        types,
        slots,
        versions,
        request.limit,
        request.token,
        request.worker_id,
        request.worker_version,
        request.lease_micros,
        store_now,
    )
    if not taken and await tx.value("keyed_any", queues, types):
        return None
    jobs = _in_order([ClaimedJob(*row) for row in taken])
    if len(lanes) > 1:
        _offer_the_rest(tx, request, jobs)
    return jobs


async def claim_keyed(tx: Tx, request: ClaimRequest, now: Instant, repeat: bool) -> list[ClaimedJob] | None:
    """Claim jobs with keys; None if all that were found had to be parked: there may be more behind them. Those are
    claimed in another transaction, because locking further keys after the first ones could deadlock with a claim that
    locks them in the other order."""
    if (request.repeat or repeat) and (before := await _claimed_before(tx, request)):
        return before
    chosen, parked = await _choose(tx, request, now)
    if not chosen:
        return None if parked else []
    taken = await tx.rows(
        "claim_seqs",
        [candidate[_SEQ] for candidate in chosen],
        request.token,
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
    return _in_order([ClaimedJob(*row) for row in await tx.rows("claimed_before", request.worker_id, request.token)])


def _in_order(jobs: list[ClaimedJob]) -> list[ClaimedJob]:
    jobs.sort(key=lambda job: (-job.priority, job.scheduled_for, job.job_id))
    return jobs


def _lanes(request: ClaimRequest) -> list[Lane]:
    return [
        (queue, job_type, min(slots, request.limit), request.versions.get(job_type, _ANY_VERSION))
        for job_type, slots in request.slots.items()
        if min(slots, request.limit) > 0
        for queue in request.queues
    ]


async def _choose(tx: Tx, request: ClaimRequest, now: Instant) -> tuple[list[Candidate], bool]:
    """Return the jobs to claim, and whether others were parked."""
    paused = {row[0] for row in await tx.rows("paused")}
    lanes = [lane for lane in _lanes(request) if lane[0] not in paused]
    admitted, key_full, over_rate = await _admit(tx, await _heads(tx, request, lanes), request.limit, now)
    for parked, by_rate in ((key_full, False), (over_rate, True)):
        if parked:
            await tx.execute("park", [each[_SEQ] for each in parked], by_rate)
    await admission.left_sight(tx, {each[_RATE_KEY] for each in key_full if each[_RATE_KEY] is not None}, now)
    await _take_turns(tx, admitted, now)
    return admitted, bool(key_full or over_rate)


async def _heads(tx: Tx, request: ClaimRequest, lanes: list[Lane]) -> list[Candidate]:
    """Return the first jobs of all requested lanes, each type within its slots."""
    by_type: dict[str, list[Candidate]] = {}
    turns = {lane for lane in lanes if await tx.value("fair_any", lane[0], lane[1])}
    await admission.hold(tx, [(queue, job_type) for queue, job_type, _, _ in turns])
    for lane in lanes:
        by_type.setdefault(lane[1], []).extend(await _lane(tx, lane, lane in turns))
    found: list[Candidate] = []
    for job_type, candidates in by_type.items():
        candidates.sort(key=_order)
        found += candidates[: min(request.slots[job_type], request.limit)]
    found.sort(key=_order)
    return found  # perhaps more than can be claimed: jobs of one type that must wait must not hide those of another


async def _lane(tx: Tx, lane: Lane, take_turns: bool) -> list[Candidate]:
    queue, job_type, limit, version = lane
    if not take_turns:
        return await admission.without_turns(tx, queue, job_type, limit, version, None, [])
    turns = await admission.heads(tx, queue, job_type, limit, version)
    return [[*candidate, (queue, job_type, key, weight)] for *candidate, key, weight in turns]


def _order(candidate: Candidate) -> tuple[int, Instant, str]:
    # Jobs that take turns are one block with one due time: later sorting must not change their order.
    return -candidate[0], candidate[1], "" if len(candidate) > _FAIRNESS else candidate[2]


async def _admit(
    tx: Tx, heads: list[Candidate], limit: int, now: Instant
) -> tuple[list[Candidate], list[Candidate], list[Candidate]]:
    """Split the jobs by whether their concurrency key and rate key have room, until there are enough. The names are
    locked until the commit, so that two claims cannot both take the last place."""
    names = {release.name_of(head[_KEY]) for head in heads if head[_KEY] is not None}
    names |= {admission.name_of(head[_RATE_KEY]) for head in heads if head[_RATE_KEY] is not None}
    if names:
        await tx.rows("lock_names", sorted(names))
    room: dict[str, int] = {}
    buckets = admission.Buckets(tx, now)
    admitted: list[Candidate] = []
    key_full: list[Candidate] = []
    over_rate: list[Candidate] = []
    for head in heads:
        if len(admitted) == limit:
            break
        key, rate_key = head[_KEY], head[_RATE_KEY]
        if key is not None and head[_LIMIT] is not None:
            if key not in room:
                room[key] = head[_LIMIT] - await release.running(tx, key)
            if room[key] <= 0:
                key_full.append(head)
                continue
        if rate_key is not None and not await buckets.admit((rate_key, Rate(head[_RATE_COUNT], head[_RATE_MICROS]))):
            over_rate.append(head)
            continue
        if key in room:
            room[key] -= 1
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

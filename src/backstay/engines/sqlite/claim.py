"""`claim` on SQLite: reads the heads of the requested queues and types, merges them, and claims them."""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core.records import ClaimedJob, ClaimRequest, Rate, Signal
from backstay.core.states import Event, Status
from backstay.engines.sqlite import admission, release
from backstay.engines.sqlite.connection import load
from backstay.engines.sqlite.writer import Tx

CANDIDATES = load("candidates")
CLAIM = load("claim")
CLAIMED = load("claimed")
CLAIMED_BEFORE = load("claimed_before")
_PARK_ROUNDS = 20  # each round parks jobs that cannot start; more rounds are left to the next claim

_jobs = msgspec.json.Decoder(list[ClaimedJob])
_decode = msgspec.json.decode
_ANY_VERSION = 2**31
# Columns of a candidate, as returned by the statements candidates and fair_head.
_ID, _SEQ, _KEY, _LIMIT, _RATE_KEY, _RATE_COUNT, _RATE_MICROS, _FAIRNESS = 2, 3, 4, 5, 6, 7, 8, 9
Candidate = list[Any]
_Lanes = dict[tuple[str, str], list[tuple[str, int]]]  # queue and type → the keys and weights that had a turn


def claim(tx: Tx, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
    if request.repeat:
        before = str(tx.value(CLAIMED_BEFORE, {"token": request.token, "worker_id": request.worker_id}))
        if before != "[]":
            return sorted(_fetch(tx, before), key=_claim_order)
    chosen = _choose(tx, request, now)
    if not chosen:
        return []
    encoded = msgspec.json.encode([candidate[_SEQ] for candidate in chosen]).decode()
    worker = msgspec.json.encode(request.worker_id).decode()
    tx.connection.execute(
        CLAIM,
        {
            "token": request.token,
            "worker_id": request.worker_id,
            "worker_version": request.worker_version,
            "lease": now + request.lease_micros,
            "now": now,
            "event_head": f',{now},"{Event.CLAIM.value}","{Status.PENDING.value}","{Status.PROCESSING.value}",',
            "event_tail": f",{worker}]",
            "seqs": encoded,
        },
    )
    turns = {candidate[_ID]: turn for turn, candidate in enumerate(chosen)}
    return sorted(_fetch(tx, encoded), key=lambda job: turns[job.job_id])


def _fetch(tx: Tx, seqs: str) -> list[ClaimedJob]:
    return _jobs.decode(tx.value(CLAIMED, (seqs,)))


def _claim_order(job: ClaimedJob) -> tuple[int, Instant, str]:
    return -job.priority, job.scheduled_for, job.job_id


def _choose(tx: Tx, request: ClaimRequest, now: Instant) -> list[Candidate]:
    for _ in range(_PARK_ROUNDS):
        admitted, key_full, over_rate = _admit(tx, _heads(tx, request), request.limit, now)
        if key_full or over_rate:
            _park(tx, key_full, over_rate, now)
        if admitted:
            _take_turns(tx, admitted, now)
        if admitted or not (key_full or over_rate):
            return admitted
    tx.signals.add(Signal.READY)  # there is more behind what was parked: free workers should claim again
    return []


def _heads(tx: Tx, request: ClaimRequest) -> list[Candidate]:
    """The first jobs over all asked queues and types, each type within its slots."""
    found: list[Candidate] = []
    for job_type, slots in request.slots.items():
        limit = min(slots, request.limit)
        if limit <= 0:
            continue
        version = request.versions.get(job_type, _ANY_VERSION)
        of_type: list[Candidate] = []
        for queue in request.queues:
            of_type += _lane(tx, queue, job_type, limit, version)
        if len(request.queues) > 1:
            of_type.sort(key=_order)
        found += of_type[:limit]
    if len(request.slots) > 1:
        found.sort(key=_order)
    return found  # perhaps more than can be claimed: jobs of one type that must wait must not hide those of another


def _lane(tx: Tx, queue: str, job_type: str, limit: int, version: int) -> list[Candidate]:
    head = tx.value(CANDIDATES, (queue, job_type, limit, version))
    if head is not None:
        plain: list[Candidate] = _decode(head)
        return plain
    turns = admission.heads(tx, queue, job_type, limit, version)
    return [[*candidate, (queue, job_type, key, weight)] for *candidate, key, weight in turns]


def _order(candidate: Candidate) -> tuple[int, Instant, str]:
    # Jobs that take turns are one block with one due time: later sorting must not change their order.
    return -candidate[0], candidate[1], "" if len(candidate) > _FAIRNESS else candidate[2]


def _admit(
    tx: Tx, heads: list[Candidate], limit: int, now: Instant
) -> tuple[list[Candidate], list[Candidate], list[Candidate]]:
    """Split the jobs by whether their concurrency key and rate key have room, until there are enough."""
    room: dict[str, int] = {}
    buckets: admission.Buckets | None = None
    admitted: list[Candidate] = []
    key_full: list[Candidate] = []
    over_rate: list[Candidate] = []
    for head in heads:
        if len(admitted) == limit:
            break
        key, rate_key = head[_KEY], head[_RATE_KEY]
        if key is not None and head[_LIMIT] is not None:
            if key not in room:
                room[key] = head[_LIMIT] - release.running(tx, key)
            if room[key] <= 0:
                key_full.append(head)
                continue
        if rate_key is not None:
            buckets = buckets or admission.Buckets(tx, now)
            if not buckets.admit((rate_key, Rate(head[_RATE_COUNT], head[_RATE_MICROS]))):
                over_rate.append(head)
                continue
        if key in room:
            room[key] -= 1
        admitted.append(head)
    if buckets is not None:
        buckets.write()
    return admitted, key_full, over_rate


def _park(tx: Tx, key_full: list[Candidate], over_rate: list[Candidate], now: Instant) -> None:
    for parked, by_rate in ((key_full, 0), (over_rate, 1)):
        if parked:
            tx.connection.execute(
                release.PARK, (msgspec.json.encode([each[_SEQ] for each in parked]).decode(), by_rate)
            )
    if rate_keys := {each[_RATE_KEY] for each in key_full if each[_RATE_KEY] is not None}:
        admission.left_sight(tx, rate_keys, now)


def _take_turns(tx: Tx, admitted: list[Candidate], now: Instant) -> None:
    lanes: _Lanes = {}
    for candidate in admitted:
        if len(candidate) > _FAIRNESS:
            queue, job_type, key, weight = candidate[_FAIRNESS]
            lanes.setdefault((queue, job_type), []).append((key, weight))
    for (queue, job_type), taken in lanes.items():
        admission.count_turns(tx, queue, job_type, taken, now)

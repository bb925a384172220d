"""`claim` on SQLite: reads the heads of the requested queues and types, merges them, and claims them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

import apsw
import msgspec

from backstay.clock import Instant
from backstay.core.records import ClaimedJob, ClaimRequest, Lost, Rate, Signal
from backstay.engines.lanes import FAIR, LOOKED, PLAIN, Asked, Lane, Pair, Row
from backstay.engines.places import token_key
from backstay.engines.sqlite import admission, release
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite.connection import CANDIDATE, load
from backstay.engines.sqlite.writer import Tx
from backstay.limits import ALONE_COUNTED_MAX, CLAIM_LANES_MAX

CANDIDATES = load("candidates")
LANES = load("lanes")
FAIR_LANES = load("fair_lanes")
CLAIM = load("claim")
CLAIM_HEAD = load("claim_head")
LEAVE_HEAD = load("leave_head")
LEAVE_ABOVE = load("leave_above")
CLAIMED = load("claimed")
LEAVE = (
    "DELETE FROM ready WHERE queue = ? AND job_type = ? AND fair = ? AND parked = 0 AND priority = ?"
    " AND scheduled_for = ? AND job_id = ?"
)
CLAIMED_BEFORE = load("claimed_before")
ALONE_CANDIDATES = load("alone_candidates")
WAIT_ALONE = load("wait_alone")
_ALONE_MAX = 200  # read at once
_PARK_ROUNDS = 20  # each round parks jobs that cannot start; more rounds are left to the next claim

_jobs = msgspec.json.Decoder(list[ClaimedJob])
_decode = msgspec.json.decode
_ANY_VERSION = 2**31
Candidate = list[Any]  # the values of CANDIDATE; in a lane that takes turns, whose turn it is comes after them
(
    _PRIORITY, _DUE, _ID, _SEQ, _KEY, _LIMIT, _RATE_KEY, _RATE_COUNT, _RATE_MICROS, _QUEUE, _TYPE, _FAIR, _ATTEMPT,
    _FAILURES, _VERSION, _AWAITED, _OWN_DUE, _TURN,
) = range(len(CANDIDATE) + 1)  # fmt: skip
_start = itemgetter(_SEQ, _ATTEMPT, _FAILURES, _VERSION, _AWAITED, _KEY)
_line = itemgetter(_QUEUE, _TYPE, _FAIR, _PRIORITY, _OWN_DUE, _ID)  # the due time of a turn is that of its lane
_ASK_QUEUES = (
    "INSERT INTO temp.asked_queue SELECT value FROM json_each(?)"
    " EXCEPT SELECT name FROM queue WHERE paused_at IS NOT NULL"
)
_ASK_TYPES = "INSERT INTO temp.asked_type SELECT value FROM json_each(?)"
_Lanes = dict[tuple[str, str], list[tuple[str, int]]]  # queue and type → the keys and weights that had a turn


_walked = msgspec.json.Decoder(list[tuple[str, str, tuple[int, Instant, str] | None]])


def lanes(connection: apsw.Connection, asked: Asked, at: Pair) -> list[Row]:
    """Walk along the lanes that have pending jobs, on a reader's connection, so that it takes no write lock."""
    connection.execute("DELETE FROM temp.asked_queue; DELETE FROM temp.asked_type")
    connection.execute(_ASK_QUEUES, (msgspec.json.encode(asked.queues).decode(),))
    connection.execute(_ASK_TYPES, (msgspec.json.encode(asked.types).decode(),))
    found: list[Row] = []
    for statement, kind, looked in ((LANES, PLAIN, LOOKED[0]), (FAIR_LANES, FAIR, LOOKED[1])):
        text = sqlite_connection.value(connection, statement, (*at, CLAIM_LANES_MAX))
        for queue, job_type, head in _walked.decode(text):
            found.append((looked, queue, job_type, 0, 0, ""))
            if head is not None:
                found.append((kind, queue, job_type, *head))
    return found


def claim(tx: Tx, request: ClaimRequest, now: Instant, lanes: Sequence[Lane]) -> list[ClaimedJob]:
    token = token_key(request.token)
    if request.repeat:
        before = str(tx.value(CLAIMED_BEFORE, {"token": token, "worker_id": request.worker_id}))
        if before != "[]":
            return sorted(_fetch(tx, before), key=_claim_order)
    chosen, is_head = _choose(tx, request, lanes, now)
    if not chosen:
        return []
    run = {
        "token": token,
        "worker_id": request.worker_id,
        "worker_version": request.worker_version,
        "lease": now + request.lease_micros,
        "now": now,
    }
    if is_head:
        _take_heads(tx, request, chosen, run)
    else:
        tx.connection.execute(CLAIM, run | {"batch": msgspec.json.encode([_start(each) for each in chosen]).decode()})
        tx.connection.executemany(LEAVE, map(_line, chosen))
    return _fetch(tx, msgspec.json.encode([each[_SEQ] for each in chosen]).decode())


def _take_heads(tx: Tx, request: ClaimRequest, chosen: Sequence[Candidate], run: dict[str, Any]) -> None:
    """Take jobs of which those of each lane are its first, as its line is."""
    lanes: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in chosen:
        lanes.setdefault((candidate[_QUEUE], candidate[_TYPE]), []).append(candidate)
    for (queue, job_type), taken in lanes.items():
        newest, suspicion = _reads(request, job_type)
        line = {"queue": queue, "job_type": job_type, "newest": newest, "suspicion": suspicion}
        tx.connection.execute(CLAIM_HEAD, run | line | {"count": len(taken)})
        last = taken[-1]
        line |= {"priority": last[_PRIORITY], "due": last[_DUE], "job_id": last[_ID]}
        tx.connection.execute(LEAVE_HEAD, line)
        if taken[0][_PRIORITY] != last[_PRIORITY]:
            tx.connection.execute(LEAVE_ABOVE, line)


def _reads(request: ClaimRequest, job_type: str) -> admission.Reads:
    return request.versions.get(job_type, _ANY_VERSION), request.lost.suspicion_max


def _fetch(tx: Tx, seqs: str) -> list[ClaimedJob]:
    return _jobs.decode(tx.value(CLAIMED, (seqs,)))


def _claim_order(job: ClaimedJob) -> tuple[int, Instant, str]:
    return -job.priority, job.scheduled_for, job.job_id


def _choose(tx: Tx, request: ClaimRequest, lanes: Sequence[Lane], now: Instant) -> tuple[list[Candidate], bool]:
    """Return the jobs to take, and whether those of each lane are its first, in the order of its line."""
    for _ in range(_PARK_ROUNDS):
        alone = request.lost is Lost.ALONE
        heads = _alone(tx, request) if alone else _heads(tx, request, lanes)
        admitted, key_full, over_rate = _admit(tx, heads, request.limit, now)
        if key_full or over_rate:
            _park(tx, key_full, over_rate, now)
        took_turns = _take_turns(tx, admitted, now)
        if admitted or not (key_full or over_rate):
            return admitted, not (alone or took_turns or key_full or over_rate)
    tx.signals.add(Signal.READY)  # there is more behind what was parked: free workers should claim again
    return [], False


def _heads(tx: Tx, request: ClaimRequest, lanes: Sequence[Lane]) -> Iterator[Candidate]:
    """The first jobs over all lanes, each type within its slots. A lane is not read before its first job could be next.

    Perhaps more than can be claimed: jobs of one type that must wait must not hide those of another."""
    if len(lanes) == 1:
        lane = lanes[0]
        room = min(request.slots[lane.job_type], request.limit)
        if room > 0:
            yield from _lane(tx, lane.queue, lane.job_type, room, _reads(request, lane.job_type))
        return
    given: Counter[str] = Counter()
    heads: dict[int, list[Candidate]] = {}
    waiting = [(lane.head, number) for number, lane in enumerate(lanes)]
    heapq.heapify(waiting)
    while waiting:
        _, number = heapq.heappop(waiting)
        lane = lanes[number]
        room = min(request.slots[lane.job_type], request.limit) - given[lane.job_type]
        if room <= 0:
            continue
        if number not in heads:
            heads[number] = _lane(tx, lane.queue, lane.job_type, room, _reads(request, lane.job_type))[::-1]
        else:
            given[lane.job_type] += 1
            yield heads[number].pop()
        if heads[number]:
            heapq.heappush(waiting, (_order(heads[number][-1]), number))


# Jobs that run alone


def _alone(tx: Tx, request: ClaimRequest) -> list[Candidate]:
    """The first of them over all asked queues and types, each type within its slots."""
    left = dict(request.slots)
    found: list[Candidate] = []
    for candidate in _decode(tx.value(ALONE_CANDIDATES, (*_asked(request), _ALONE_MAX))):
        if left[candidate[_TYPE]] > 0:
            left[candidate[_TYPE]] -= 1
            found.append(candidate)
    return found


def wait_alone(connection: apsw.Connection, request: ClaimRequest) -> dict[str, int]:
    return dict(sqlite_connection.rows(connection, WAIT_ALONE, (*_asked(request), ALONE_COUNTED_MAX)))


def _asked(request: ClaimRequest) -> tuple[str, str]:
    """The queues, and the types with the newest version that is read, as JSON."""
    types = {name: request.versions.get(name, _ANY_VERSION) for name, slots in request.slots.items() if slots > 0}
    return msgspec.json.encode(request.queues).decode(), msgspec.json.encode(types).decode()


def _lane(tx: Tx, queue: str, job_type: str, limit: int, reads: admission.Reads) -> list[Candidate]:
    head = tx.value(CANDIDATES, (queue, job_type, limit, *reads))
    if head is not None:
        plain: list[Candidate] = _decode(head)
        return plain
    turns = admission.heads(tx, queue, job_type, limit, reads)
    return [[*candidate, (queue, job_type, key, weight)] for *candidate, key, weight in turns]


def _order(candidate: Candidate) -> tuple[int, Instant, str]:
    # Jobs that take turns are one block with one due time: later sorting must not change their order.
    return -candidate[_PRIORITY], candidate[_DUE], "" if len(candidate) > _TURN else candidate[_ID]


def _admit(
    tx: Tx, heads: Iterable[Candidate], limit: int, now: Instant
) -> tuple[list[Candidate], list[Candidate], list[Candidate]]:
    """Split the jobs by whether their concurrency key and rate key have room, until there are enough."""
    room: dict[str, int] = {}
    buckets: admission.Buckets | None = None
    admitted: list[Candidate] = []
    key_full: list[Candidate] = []
    over_rate: list[Candidate] = []
    for head in heads:
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
        if len(admitted) == limit:
            break
    if buckets is not None:
        buckets.write()
    return admitted, key_full, over_rate


def _park(tx: Tx, key_full: list[Candidate], over_rate: list[Candidate], now: Instant) -> None:
    for parked, why in ((key_full, admission.BY_KEY), (over_rate, admission.BY_RATE)):
        if parked:
            tx.connection.execute(admission.PARK, (msgspec.json.encode([_line(each) for each in parked]).decode(), why))
    if rate_keys := {each[_RATE_KEY] for each in key_full if each[_RATE_KEY] is not None}:
        admission.left_sight(tx, rate_keys, now)


def _take_turns(tx: Tx, admitted: list[Candidate], now: Instant) -> bool:
    """Count the turns of those that take turns; return whether any does."""
    lanes: _Lanes = {}
    for candidate in admitted:
        if len(candidate) > _TURN:
            queue, job_type, key, weight = candidate[_TURN]
            lanes.setdefault((queue, job_type), []).append((key, weight))
    for (queue, job_type), taken in lanes.items():
        admission.count_turns(tx, queue, job_type, taken, now)
    return bool(lanes)

"""`claim` on SQLite: reads the heads of the requested queues and types, merges them, and claims them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import apsw
import msgspec

from backstay.clock import Instant
from backstay.core.admission import BY_KEY, BY_RATE, Admission, Gates
from backstay.core.records import ClaimedJob, ClaimRequest, Lost, Signal
from backstay.engines.lanes import FAIR, LOOKED, PLAIN, Asked, Lane, Pair, Row, order
from backstay.engines.places import token_key
from backstay.engines.sqlite import admission, release
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite.connection import Candidate, load
from backstay.engines.sqlite.writer import Tx
from backstay.limits import ALONE_COUNTED_MAX, CLAIM_LANES_MAX, CLAIM_ROUNDS_MAX

CANDIDATES = load("candidates")
LANES = load("lanes")
FAIR_LANES = load("fair_lanes")
CLAIM = load("claim")
CLAIM_HEAD = load("claim_head")
LEAVE_HEAD = load("leave_head")
LEAVE_ABOVE = load("leave_above")
CLAIMED = load("claimed")
LEAVE = load("leave")
CLAIMED_BEFORE = load("claimed_before")
ALONE_CANDIDATES = load("alone_candidates")
WAIT_ALONE = load("wait_alone")
_ALONE_MAX = 200  # read at once

_jobs = msgspec.json.Decoder(list[ClaimedJob])
_candidates = msgspec.json.Decoder(list[Candidate]).decode
_ANY_VERSION = 2**31
_NO_LIMIT = 2**31
_LIMITED = "limited"  # instead of the head of a lane: something was set at run time for its type
_start = attrgetter("seq", "attempt", "failures", "version", "awaited", "concurrency_key")
_place = attrgetter("queue", "job_type", "fair", "priority", "scheduled_for", "job_id")
ASK_NO_QUEUES = load("ask_no_queues")
ASK_QUEUES = load("ask_queues")
ASK_NO_PAUSED = load("ask_no_paused")
ASK_NO_TYPES = load("ask_no_types")
ASK_TYPES = load("ask_types")
ASK_NO_PAUSED_TYPES = load("ask_no_paused_types")


class _Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    priority: int
    due: Instant
    job_id: str


class _Step(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A lane that a walk has come to, and the first job in it that may start."""

    queue: str
    job_type: str
    head: _Head | None


_walked = msgspec.json.Decoder(list[_Step])


def lanes(connection: apsw.Connection, asked: Asked, at: Pair) -> list[Row]:
    """Walk along the lanes that have pending jobs, on a reader's connection, so that it takes no write lock."""
    connection.execute(ASK_NO_QUEUES)
    connection.execute(ASK_QUEUES, (msgspec.json.encode(asked.queues).decode(),))
    connection.execute(ASK_NO_PAUSED)
    connection.execute(ASK_NO_TYPES)
    connection.execute(ASK_TYPES, (msgspec.json.encode(asked.types).decode(),))
    connection.execute(ASK_NO_PAUSED_TYPES)
    found: list[Row] = []
    for statement, kind, looked in ((LANES, PLAIN, LOOKED[0]), (FAIR_LANES, FAIR, LOOKED[1])):
        text = sqlite_connection.value(connection, statement, (*at, CLAIM_LANES_MAX))
        for step in _walked.decode(text):
            found.append(Row(looked, step.queue, step.job_type))
            if (head := step.head) is not None:
                found.append(Row(kind, step.queue, step.job_type, head.priority, head.due, head.job_id))
    return found


def claim(tx: Tx, request: ClaimRequest, now: Instant, lanes: Sequence[Lane]) -> list[ClaimedJob]:
    if request.repeat:
        mine = {"token": token_key(request.token), "worker_id": request.worker_id}
        before = str(tx.value(CLAIMED_BEFORE, mine))
        if before != "[]":
            return sorted(_fetch(tx, before), key=_claim_order)
    chosen, is_head = _choose(tx, request, lanes, now)
    if not chosen:
        return []
    run = {
        "token": token_key(request.token),
        "worker_id": request.worker_id,
        "worker_version": request.worker_version,
        "lease": now + request.lease_micros,
        # This may have waited for the writer while a job came in: none begins before what it waited for.
        "now": max(now, *(each.due for each in chosen)),
    }
    if is_head:
        _take_heads(tx, request, chosen, run, now)
    else:
        tx.connection.execute(CLAIM, run | {"batch": msgspec.json.encode([_start(each) for each in chosen]).decode()})
        tx.connection.executemany(LEAVE, map(_place, chosen))
    return _fetch(tx, msgspec.json.encode([each.seq for each in chosen]).decode())


def _take_heads(tx: Tx, request: ClaimRequest, chosen: Sequence[Candidate], run: dict[str, Any], now: Instant) -> None:
    """Take jobs of which those of each lane are its first, as its line is."""
    lanes: dict[tuple[str, str], list[Candidate]] = {}
    for candidate in chosen:
        lanes.setdefault((candidate.queue, candidate.job_type), []).append(candidate)
    for (queue, job_type), taken in lanes.items():
        newest, suspicion, at = _reads(request, job_type, now)
        line = {"queue": queue, "job_type": job_type, "newest": newest, "suspicion": suspicion, "at": at}
        tx.connection.execute(CLAIM_HEAD, run | line | {"count": len(taken)})
        last = taken[-1]
        line |= {"priority": last.priority, "due": last.due, "job_id": last.job_id}
        tx.connection.execute(LEAVE_HEAD, line)
        if taken[0].priority != last.priority:
            tx.connection.execute(LEAVE_ABOVE, line)


def _reads(request: ClaimRequest, job_type: str, now: Instant) -> admission.Reads:
    return request.versions.get(job_type, _ANY_VERSION), request.lost.suspicion_max, now


def _fetch(tx: Tx, seqs: str) -> list[ClaimedJob]:
    return _jobs.decode(tx.connection.execute(CLAIMED, (seqs,)).get)


def _claim_order(job: ClaimedJob) -> tuple[int, Instant, str]:
    return -job.priority, job.scheduled_for, job.job_id


def _choose(tx: Tx, request: ClaimRequest, lanes: Sequence[Lane], now: Instant) -> tuple[list[Candidate], bool]:
    """Return the jobs to take, and whether those of each lane are its first, in the order of its line."""
    for _ in range(CLAIM_ROUNDS_MAX):
        alone = request.lost is Lost.ALONE
        gates = Gates()
        heads = iter(_alone(tx, request, gates, now)) if alone else _heads(tx, request, lanes, gates, now)
        first = next(heads, None)
        if first is None:
            return [], False
        decided = _admit(tx, request, chain((first,), heads), gates, now)
        parks = decided.parks
        if parks or gates.levels or gates.turns:
            _write(tx, decided, now)
        if decided.started or not parks:
            return decided.started, not (alone or gates.turns or parks)
    tx.signals.add(Signal.READY)  # there is more behind what was parked: free workers should claim again
    return [], False


def _admit(
    tx: Tx, request: ClaimRequest, heads: Iterator[Candidate], gates: Gates, now: Instant
) -> Admission[Candidate]:
    decided: Admission[Candidate] = Admission(gates, request.limit, request.slots, now)
    while some := list(islice(heads, request.limit - len(decided.started))):
        _read_limits(tx, gates, {name for head in some for name in (head.concurrency_key, head.rate_key) if name})
        keys, buckets = gates.missing(some)
        for job_type in gates.limited_types(some):
            gates.of_type[job_type] = release.running_of_type(tx, job_type)
        for key in keys:
            gates.running[key] = release.running(tx, key)
        for bucket in buckets:
            gates.levels[bucket] = admission.level(tx.connection, bucket, now)
        decided.consider(some)
        if decided.is_full:
            break
    return decided


def _read_limits(tx: Tx, gates: Gates, names: Collection[str]) -> None:
    if names:
        gates.limits.rows.update(admission.in_force(tx.connection, names).rows)


def _write(tx: Tx, decided: Admission[Candidate], now: Instant) -> None:
    for draw in decided.draws():
        admission.save(tx, draw.bucket, draw.level, now)
    admission.count_turns(tx, decided.turns(), now)
    for parked, why in ((decided.key_full, BY_KEY), (decided.over_rate, BY_RATE)):
        if parked:
            places = msgspec.json.encode([_place(each) for each in parked]).decode()
            tx.connection.execute(admission.PARK, (places, why))
    if left := decided.left_sight():
        admission.left_sight(tx, {bucket.key for bucket in left}, now, gone=False)


def _heads(tx: Tx, request: ClaimRequest, lanes: Sequence[Lane], gates: Gates, now: Instant) -> Iterator[Candidate]:
    """The first jobs over all lanes, each type within its slots. A lane is not read before its first job could be next.

    Perhaps more than can be claimed: jobs of one type that must wait must not hide those of another."""
    if len(lanes) == 1:
        lane = lanes[0]
        room = min(request.slots[lane.job_type], request.limit)
        return iter(_lane(tx, lane, room, request, gates, now)) if room > 0 else iter(())
    return _merged(tx, request, lanes, gates, now)


def _merged(tx: Tx, request: ClaimRequest, lanes: Sequence[Lane], gates: Gates, now: Instant) -> Iterator[Candidate]:
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
            heads[number] = _lane(tx, lane, room, request, gates, now)[::-1]
        else:
            given[lane.job_type] += 1
            yield heads[number].pop()
        if heads[number]:
            heapq.heappush(waiting, (order(heads[number][-1]), number))


def _lane(tx: Tx, lane: Lane, limit: int, request: ClaimRequest, gates: Gates, now: Instant) -> list[Candidate]:
    reads = _reads(request, lane.job_type, now)
    head: Any = tx.connection.execute(CANDIDATES, (lane.queue, lane.job_type, limit, *reads, False)).get
    if head == _LIMITED:
        limit = min(limit, _room_of_type(tx, lane.job_type, gates))
        if limit <= 0:
            return []
        head = tx.connection.execute(CANDIDATES, (lane.queue, lane.job_type, limit, *reads, True)).get
    if head is not None:
        return _candidates(head)
    return admission.heads(tx, lane.queue, lane.job_type, limit, reads, gates.turns)


def _room_of_type(tx: Tx, job_type: str, gates: Gates) -> int:
    """Return how many more jobs may run of a type for which something was set at run time."""
    _read_limits(tx, gates, [job_type])
    row = gates.limits.of_type(job_type)
    if row is None or row.concurrency is None:
        return _NO_LIMIT if row is None or row.paused_at is None else 0
    if job_type not in gates.of_type:
        gates.of_type[job_type] = release.running_of_type(tx, job_type)
    return 0 if row.paused_at is not None else row.concurrency - gates.of_type[job_type]


# Jobs that run alone


def _alone(tx: Tx, request: ClaimRequest, gates: Gates, now: Instant) -> list[Candidate]:
    """The first of them over all asked queues and types."""
    found = _candidates(tx.value(ALONE_CANDIDATES, (*_asked(request), _ALONE_MAX, now)))
    _read_limits(tx, gates, {head.job_type for head in found})
    return found


def wait_alone(connection: apsw.Connection, request: ClaimRequest) -> dict[str, int]:
    return dict(sqlite_connection.rows(connection, WAIT_ALONE, (*_asked(request), ALONE_COUNTED_MAX)))


def _asked(request: ClaimRequest) -> tuple[str, str]:
    """The queues, and the types with the newest version that is read, as JSON."""
    types = {name: request.versions.get(name, _ANY_VERSION) for name, slots in request.slots.items() if slots > 0}
    return msgspec.json.encode(request.queues).decode(), msgspec.json.encode(types).decode()

"""claim: read the heads of the asked queues and types, merge them, take them."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import Event, Status
from holdfast.store.types import ClaimedJob, ClaimRequest, Signal
from holdfast.stores.sqlite import releasing
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.writer import Tx

CANDIDATES = load("candidates")
CLAIM = load("claim")
CLAIMED = load("claimed")
CLAIMED_BEFORE = load("claimed_before")
_PARK_ROUNDS = 20  # each round parks what stands in the way; more than this is left to the next claim

_jobs = msgspec.json.Decoder(list[ClaimedJob])
_decode = msgspec.json.decode
_KEY, _LIMIT, _SEQ = 4, 5, 3


def claim(tx: Tx, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
    if request.repeat:
        before = str(tx.value(CLAIMED_BEFORE, {"token": request.token, "worker_id": request.worker_id}))
        if before != "[]":
            return _fetch(tx, before)
    seqs = _choose(tx, request)
    if not seqs:
        return []
    encoded = msgspec.json.encode(seqs).decode()
    worker = msgspec.json.encode(request.worker_id).decode()
    tx.execute(
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
    return _fetch(tx, encoded)


def _fetch(tx: Tx, seqs: str) -> list[ClaimedJob]:
    jobs = _jobs.decode(tx.value(CLAIMED, (seqs,)))
    jobs.sort(key=_claim_order)
    return jobs


def _claim_order(job: ClaimedJob) -> tuple[int, Instant, str]:
    return -job.priority, job.scheduled_for, job.job_id


def _choose(tx: Tx, request: ClaimRequest) -> list[int]:
    for _ in range(_PARK_ROUNDS):
        heads = _heads(tx, request)
        admitted, excess = _admit(tx, heads)
        if excess:
            tx.execute(releasing.PARK, (msgspec.json.encode(excess).decode(),))
        if admitted or not excess:
            return admitted
    tx.signals.add(Signal.READY)  # there is more behind what was parked: whoever is free should come again
    return []


def _heads(tx: Tx, request: ClaimRequest) -> list[list[Any]]:
    """The first jobs over all asked queues and types, each type within its slots."""
    found: list[list[Any]] = []
    for job_type, slots in request.slots.items():
        limit = min(slots, request.limit)
        if limit <= 0:
            continue
        of_type: list[list[Any]] = []
        for queue in request.queues:
            of_type += _decode(tx.value(CANDIDATES, (queue, job_type, limit)))
        if len(request.queues) > 1:
            of_type.sort(key=_order)
        found += of_type[:limit]
    if len(request.slots) > 1:
        found.sort(key=_order)
    return found[: request.limit]


def _order(candidate: list[Any]) -> tuple[int, Instant, str]:
    return -candidate[0], candidate[1], candidate[2]


def _admit(tx: Tx, heads: list[list[Any]]) -> tuple[list[int], list[int]]:
    """Split by whether the concurrency key has room."""
    room: dict[str, int] = {}
    admitted: list[int] = []
    excess: list[int] = []
    for head in heads:
        key = head[_KEY]
        if key is None or head[_LIMIT] is None:
            admitted.append(head[_SEQ])
            continue
        if key not in room:
            running, _ = releasing.key_room(tx, key, "", "", 0)
            room[key] = head[_LIMIT] - running
        room[key] -= 1
        (admitted if room[key] >= 0 else excess).append(head[_SEQ])
    return admitted, excess

"""Invariants between jobs, and between moments: leases, due times, keys."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL, Event, Status
from holdfast.store.types import FOREVER, HistoryEvent, JobRecord
from holdfast.testing.history.evidence import NEVER, Evidence, ends_a_claim, trimmed
from holdfast.testing.history.invariants_of_jobs import Finding
from holdfast.testing.history.operations import Operation, Outcome


def lease_exclusion(evidence: Evidence) -> Iterator[Finding]:
    """S7, in store time: a claim ends by a settlement, or not before the last expiry its holder was told."""
    for record in evidence.records:
        held: HistoryEvent | None = None
        for event in record.history:
            if event.event is Event.CLAIM:
                if held is not None and not trimmed(record.history):
                    told = _last_lease(evidence, record.job_id, held.attempt, NEVER)
                    if told is None or event.at < told:
                        yield (
                            record.job_id,
                            f"attempt {event.attempt} was claimed while attempt {held.attempt} held it",
                        )
                held = event
                continue
            if event.event is Event.RESCUE and held is not None:
                yield from _rescued_early(evidence, record.job_id, held, event)
            if ends_a_claim(event):
                held = None


def leases_go_with_claims(evidence: Evidence) -> Iterator[Finding]:
    """S7: a running job has a lease, without which nobody would ever rescue it; no other has one."""
    for record in evidence.records:
        if (record.lease_expires_at is not None) != (record.status is Status.PROCESSING):
            yield record.job_id, f"is {record.status}, and its lease ends at {record.lease_expires_at}"


def _rescued_early(evidence: Evidence, job_id: str, claim: HistoryEvent, rescue: HistoryEvent) -> Iterator[Finding]:
    calls = [
        op
        for op in evidence.on("apply", job_id, Outcome.OK, Outcome.INFO)
        if op.item.event is Event.RESCUE and op.attempt == rescue.attempt
    ]
    told = _last_lease(evidence, job_id, claim.attempt, min((op.invoked for op in calls), default=0))
    if told is None or rescue.at >= told:
        return
    worker = claim.by or ""
    if worker not in evidence.dead_workers:
        early = told - rescue.at
        yield job_id, f"attempt {claim.attempt} of {worker} was rescued {early} µs before its lease ended"
        return
    seen = evidence.last_sign.get(evidence.process_of.get(worker, ""), 0)
    done = min((op.returned for op in calls if op.returned is not None), default=NEVER)
    if seen > done:
        yield (
            job_id,
            f"attempt {claim.attempt} of {worker} was rescued as that of a dead worker, which still lived",
        )


def _last_lease(evidence: Evidence, job_id: str, attempt: int, before: int) -> Instant | None:
    told = [lease for moment, lease in evidence.leases(job_id, attempt) if moment <= before]
    return told[-1] if told else None


def not_before(evidence: Evidence) -> Iterator[Finding]:
    """S13, in store time: a job becomes claimable at its due time, or when nothing put it off."""
    for record in evidence.records:
        due = _first_due(evidence, record.job_id)
        for event in record.history:
            if event.event in (Event.MANUAL_RETRY, Event.RESCHEDULE):
                due = None  # someone says when, and it may be now
            if due is not None and event.target is Status.PENDING and event.at < due:
                yield (
                    record.job_id,
                    f"was made pending {due - event.at} µs before it was due (version {event.version})",
                )
            if event.target in (Status.RETRYING, Status.SCHEDULED) and event.event is not Event.SUBMIT:
                due = _due_after(evidence, record.job_id, event) or due


def _first_due(evidence: Evidence, job_id: str) -> Instant | None:
    for op in evidence.on("insert", job_id):
        if op.known and op.item.scheduled_for is not None:
            return op.item.scheduled_for
    return None


def _due_after(evidence: Evidence, job_id: str, event: HistoryEvent) -> Instant | None:
    dues = [
        op.item.scheduled_for
        for op in evidence.on("apply", job_id)
        if op.known and op.item.event is event.event and op.attempt == event.attempt and op.item.scheduled_for
    ]
    return min(dues, default=None)


def deduplication(evidence: Evidence) -> Iterator[Finding]:
    """S11: a key has one live job, and everyone who submits under it is given that one."""
    by_key: dict[str, list[JobRecord]] = defaultdict(list)
    for record in (*evidence.records, *evidence.archive.values()):
        if record.dedup_key is not None:
            by_key[record.dedup_key].append(record)
    for key, holders in by_key.items():
        for one, other in combinations(holders, 2):
            yield from _two_of_a_key(evidence, key, one, other)
    for op in evidence.of("insert", Outcome.OK):
        if op.item.dedup_key is not None:
            yield from _answered_wrongly(evidence, op, op.item.dedup_key)


def _two_of_a_key(evidence: Evidence, key: str, one: JobRecord, other: JobRecord) -> Iterator[Finding]:
    orders = _possible_orders(evidence, one, other)
    first, second = orders[0]
    if all(_both_guard(evidence, *order) for order in orders):
        yield second.job_id, f"was accepted under key {key!r} while {first.job_id} guarded it"


def _possible_orders(evidence: Evidence, one: JobRecord, other: JobRecord) -> list[tuple[JobRecord, JobRecord]]:
    """Which of the two was stored first, as far as callers can tell."""
    if evidence.born(one.job_id) < evidence.asked_for(other.job_id):
        return [(one, other)]
    if evidence.born(other.job_id) < evidence.asked_for(one.job_id):
        return [(other, one)]
    return [(one, other), (other, one)]


def _both_guard(evidence: Evidence, first: JobRecord, second: JobRecord) -> bool:
    """Whether the second came, or was brought back to life, while the key was the first one's."""
    until = _window(evidence, first.job_id)
    if until is not None:
        return second.created_at < until
    if first.status not in TERMINAL and second.status not in TERMINAL:
        return True
    lives = evidence.lives(first.job_id)
    if _window(evidence, second.job_id) is not None:
        lives = lives[:1]  # by the time of another life, the second one's window may be over
    return any(
        max(begun, other_begun) < min(ended, other_ended)
        for begun, ended in lives
        for other_begun, other_ended in evidence.lives(second.job_id)
    )


def _window(evidence: Evidence, job_id: str) -> Instant | None:
    for op in evidence.on("insert", job_id):
        if op.known and op.item.dedup_until is not None:
            return min(op.item.dedup_until, FOREVER)
    return None


def _answered_wrongly(evidence: Evidence, op: Operation, key: str) -> Iterator[Finding]:
    answered = evidence.find(op.answer.job_id)
    if answered is None:
        return
    if answered.dedup_key != key and answered.job_id != op.job_id:
        yield answered.job_id, f"answered for key {key!r}, which is not its own ({answered.dedup_key!r})"
    elif op.answer.existing and answered.job_id != op.job_id:
        until = _window(evidence, answered.job_id)
        guarded = until is not None and op.now < until
        if not guarded and evidence.end_done(answered.job_id) < op.invoked:
            yield answered.job_id, f"answered for key {key!r} although it had ended: that submission was lost"

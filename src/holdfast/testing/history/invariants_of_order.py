"""Invariants between jobs, and between moments: leases, due times, keys, dependencies."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL, Event, Status
from holdfast.store.types import FOREVER, HistoryEvent, JobRecord
from holdfast.testing.history.evidence import NEVER, Edge, Evidence, ends_a_claim, generations, trimmed
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


def dependencies(evidence: Evidence) -> Iterator[Finding]:
    """S12: no claim before every parent succeeded; a parent's failure takes its dependents along."""
    for record in evidence.records:
        parents = _parents(evidence, record)
        first_life = generations(record.history)[0]
        for parent_id in parents:
            parent = evidence.find(parent_id)
            if parent is None:
                if not evidence.may_be_gone(parent_id):
                    yield record.job_id, f"depends on {parent_id}, which is not there"
                continue
            yield from _claimed_too_early(evidence, record, parent, first_life)
            yield from _retried_too_early(evidence, record, parent)
            yield from _policy(evidence, record, parent)
    if evidence.edges is not None:
        yield from _edges(evidence, evidence.edges)


def _parents(evidence: Evidence, record: JobRecord) -> set[str]:
    asked = {parent for op in evidence.on("insert", record.job_id) if op.known for parent in op.item.depends_on}
    return asked | set(record.dependencies)


def _claimed_too_early(
    evidence: Evidence, child: JobRecord, parent: JobRecord, first_life: Sequence[HistoryEvent]
) -> Iterator[Finding]:
    claims = [event for event in first_life if event.event is Event.CLAIM]
    if not claims or _joined(child, parent):
        return
    if not _succeeded(evidence, parent):
        yield child.job_id, f"was claimed, and {parent.job_id}, on which it depends, never succeeded"
        return
    claimed = [
        op.returned
        for op in evidence.on("claim", child.job_id, Outcome.OK)
        if op.attempt == claims[0].attempt and op.returned is not None
    ]
    begun = [
        op.invoked for op in evidence.on("apply", parent.job_id) if op.item.target is Status.COMPLETED and op.known
    ]
    if claimed and begun and min(claimed) < min(begun):
        yield child.job_id, f"was claimed before {parent.job_id}, on which it depends, was completed"


def _retried_too_early(evidence: Evidence, child: JobRecord, parent: JobRecord) -> Iterator[Finding]:
    retried = any(event.event is Event.MANUAL_RETRY for event in child.history)
    if retried and not _succeeded(evidence, parent) and not _joined(child, parent):
        yield child.job_id, f"was retried by hand, and {parent.job_id}, on which it depends, never succeeded"


def _succeeded(evidence: Evidence, job: JobRecord) -> bool:
    """In any of its lives; of an archived job only callers still know about the earlier ones."""
    logged = any(event.target is Status.COMPLETED for event in job.history)
    told = any(op.known and op.item.target is Status.COMPLETED for op in evidence.on("apply", job.job_id))
    return job.status is Status.COMPLETED or (told if job.archived_at is not None else logged)


def _joined(child: JobRecord, parent: JobRecord) -> bool:
    """An identical job that it waited for: when that one comes to nothing, this one runs by itself."""
    return child.content_hash is not None and child.content_hash == parent.content_hash


def _policy(evidence: Evidence, child: JobRecord, parent: JobRecord) -> Iterator[Finding]:
    lives = len(generations(child.history)), 1 + evidence.retries_by_hand(parent)
    came_to_nothing = parent.status in (Status.FAILED, Status.CANCELLED)
    if lives != (1, 1) or not came_to_nothing or _joined(child, parent) or child.reused_from is not None:
        return
    if child.status not in TERMINAL:
        if evidence.ended:
            yield (
                child.job_id,
                f"is {child.status} although {parent.job_id}, on which it depends, is {parent.status}",
            )
        return
    wanted = Status.FAILED if child.on_dependency_failure == "fail" else Status.CANCELLED
    by_hand = child.history[-1].event is Event.CANCEL
    parents = (evidence.find(other) for other in _parents(evidence, child))
    others = {other.status for other in parents if other is not None}
    if child.status is not wanted and not by_hand:
        yield (
            child.job_id,
            f"ended {child.status}; its parents ended {sorted(others)} and its policy is {wanted}",
        )


def _edges(evidence: Evidence, edges: Sequence[Edge]) -> Iterator[Finding]:
    rows = Counter((edge.parent, edge.child) for edge in edges)
    unmet: dict[str, set[str]] = defaultdict(set)
    for edge in edges:
        parent = evidence.by_id.get(edge.parent)
        if parent is None:
            continue
        lived_once = len(generations(parent.history)) == 1
        if not edge.met:
            unmet[edge.child].add(edge.parent)
        if edge.met and parent.status not in TERMINAL and lived_once:
            yield edge.child, f"has its dependency on {edge.parent} met, which is {parent.status}"
        if not edge.met and parent.status in TERMINAL and evidence.ended:
            yield edge.child, f"has its dependency on {edge.parent} unmet, which is {parent.status}"
    for record in evidence.records:
        for parent_id in _parents(evidence, record):
            if rows[parent_id, record.job_id] != 1:
                yield (
                    record.job_id,
                    f"has {rows[parent_id, record.job_id]} edges to {parent_id}, on which it depends",
                )
        if record.status is Status.WAITING and not unmet[record.job_id] and evidence.ended:
            yield record.job_id, "is waiting although everything it depends on is met"

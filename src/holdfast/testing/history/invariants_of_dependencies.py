"""Invariants of dependencies: what a rule lets start, what it ends, and that each edge counts once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from holdfast.lifecycle import TERMINAL, Event, Status
from holdfast.store.types import HistoryEvent, JobRecord
from holdfast.testing.history.evidence import Edge, Evidence, generations
from holdfast.testing.history.invariants_of_jobs import Finding
from holdfast.testing.history.operations import Moment, Outcome
from holdfast.trees import TriggerRule

_BADLY = (Status.FAILED, Status.CANCELLED)


def dependencies(evidence: Evidence) -> Iterator[Finding]:
    """S12: no claim before a job's rule is kept, and no end by a rule that is; each edge counts once."""
    for record in evidence.records:
        parents = []
        for parent_id in _parents(evidence, record):
            parent = evidence.find(parent_id)
            if parent is not None:
                parents.append(parent)
            elif not evidence.may_be_gone(parent_id):
                yield record.job_id, f"depends on {parent_id}, which is not there"
        for parent in parents:
            yield from _claimed_too_early(evidence, record, parent)
            yield from _retried_too_early(evidence, record, parent)
            yield from _policy(evidence, record, parent)
        if parents and all(_known_end(evidence, parent) for parent in parents):
            yield from _rule(evidence, record, parents)
    if evidence.edges is not None:
        yield from _edges(evidence, evidence.edges)


def _parents(evidence: Evidence, record: JobRecord) -> set[str]:
    asked = {parent for op in evidence.on("insert", record.job_id) if op.known for parent in op.item.depends_on}
    return asked | set(record.dependencies)


def _known_end(evidence: Evidence, parent: JobRecord) -> bool:
    """It has lived once: as it stands is as it ended."""
    return evidence.retries_by_hand(parent) == 0


def _waits_for_all(child: JobRecord) -> bool:
    return child.trigger_rule != TriggerRule.ONE_SUCCESS


def _claimed_too_early(evidence: Evidence, child: JobRecord, parent: JobRecord) -> Iterator[Finding]:
    claims = [event for event in generations(child.history)[0] if event.event is Event.CLAIM]
    if not claims or _joined(child, parent) or not _waits_for_all(child):
        return
    if child.trigger_rule == TriggerRule.ALL_SUCCESS and not _succeeded(evidence, parent):
        yield child.job_id, f"was claimed, and {parent.job_id}, on which it depends, never succeeded"
        return
    claimed = [
        op.returned
        for op in evidence.on("claim", child.job_id, Outcome.OK)
        if op.attempt == claims[0].attempt and op.returned is not None
    ]
    begun = _end_called(evidence, child, parent)
    if claimed and begun and min(claimed) < min(begun):
        yield child.job_id, f"was claimed before {parent.job_id}, on which it depends, had ended as it must"


def _end_called(evidence: Evidence, child: JobRecord, parent: JobRecord) -> list[Moment]:
    if any(event.event in (Event.RELEASE, Event.REUSE) and event.target in TERMINAL for event in parent.history):
        return []  # ended by another's end: nobody called for that
    ends = (Status.COMPLETED,) if child.trigger_rule == TriggerRule.ALL_SUCCESS else tuple(TERMINAL)
    return [op.invoked for op in evidence.on("apply", parent.job_id) if op.item.target in ends and op.known]


def _rule(evidence: Evidence, child: JobRecord, parents: Sequence[JobRecord]) -> Iterator[Finding]:
    """Of a first life, and of parents that have lived once: what became of it against how they ended."""
    first = generations(child.history)[0]
    claimed = any(event.event is Event.CLAIM for event in first)
    broken = any(event.target in _BADLY for event in _releases(first))
    ends = [parent.status for parent in parents if not _joined(child, parent)]
    if not ends or child.reused_from is not None:
        return
    match TriggerRule(child.trigger_rule):
        case TriggerRule.ALL_SUCCESS:
            forbids_start, forbids_end = any(end in _BADLY for end in ends), not any(end in _BADLY for end in ends)
        case TriggerRule.ALL_DONE:
            forbids_start, forbids_end = any(end not in TERMINAL for end in ends), True
        case TriggerRule.ONE_SUCCESS:
            forbids_start, forbids_end = Status.COMPLETED not in ends, Status.COMPLETED in ends
        case TriggerRule.NONE_FAILED:
            forbids_start, forbids_end = Status.FAILED in ends, Status.FAILED not in ends
    said = f"under {child.trigger_rule}, and what it depends on is {sorted(ends)}"
    if claimed and forbids_start:
        yield child.job_id, f"was claimed {said}"
    if broken and forbids_end:
        yield child.job_id, f"was ended {said}"
    waits = child.status is Status.WAITING and child.awaits is None and len(generations(child.history)) == 1
    if waits and child.trigger_rule == TriggerRule.ONE_SUCCESS and Status.COMPLETED in ends and evidence.ended:
        yield child.job_id, f"is waiting {said}"


def _releases(life: Sequence[HistoryEvent]) -> Iterator[HistoryEvent]:
    """By what it depends on, not by its children."""
    for_children = False
    for event in life:
        if event.event is Event.WAIT_FOR_CHILDREN:
            for_children = True
        elif event.event is Event.RELEASE:
            if not for_children:
                yield event
            for_children = False


def _retried_too_early(evidence: Evidence, child: JobRecord, parent: JobRecord) -> Iterator[Finding]:
    if child.trigger_rule != TriggerRule.ALL_SUCCESS:
        return
    retried = any(
        event.event is Event.MANUAL_RETRY and event.target is Status.PENDING for event in child.history
    )  # one that waits again is judged by what it waits for
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
    if child.trigger_rule != TriggerRule.ALL_SUCCESS:
        return  # what one of them came to does not decide
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
        waits = record.status is Status.WAITING and record.awaits is None
        if waits and not unmet[record.job_id] and evidence.ended:
            yield record.job_id, "is waiting although everything it depends on is met"

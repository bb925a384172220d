"""Invariants of trees: a parent's numbers, where children come from, and those who wait for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from holdfast.lifecycle import TERMINAL, Event, Status
from holdfast.store.types import HistoryEvent, JobRecord
from holdfast.testing.history.evidence import NEVER, Evidence, generations, trimmed
from holdfast.testing.history.invariants_of_jobs import Finding
from holdfast.testing.history.operations import Moment, Outcome
from holdfast.trees import Brood


def _children(evidence: Evidence) -> Mapping[str, Sequence[JobRecord]]:
    found: dict[str, list[JobRecord]] = defaultdict(list)
    for record in evidence.records:
        if record.parent_job_id is not None:
            found[record.parent_job_id].append(record)
    return found


def numbers_of_parents(evidence: Evidence) -> Iterator[Finding]:
    """S22: a parent's numbers are those of its children."""
    if not evidence.ended:
        return  # some may be on their way
    children = _children(evidence)
    for record in evidence.records:
        stand = [child.status for child in children.get(record.job_id, ())]
        are = Brood(
            len(stand),
            sum(status not in TERMINAL for status in stand),
            stand.count(Status.FAILED),
            stand.count(Status.CANCELLED),
        )
        said = Brood(record.children, record.open_children, record.failed_children, record.cancelled_children)
        if said != are:
            yield record.job_id, f"says of its children {said!r}, and they are {are!r}"


def children_of_committed_runs(evidence: Evidence) -> Iterator[Finding]:
    """S23: a child that a run brought is there only if the run, or the call that brought it, came to something."""
    brought = {job.job_id for op in evidence.of("stage") for job in op.item.jobs}
    brought |= {op.job_id for op in evidence.brought}
    for record in evidence.records:
        if record.parent_job_id is None or record.job_id not in brought:
            continue
        if not any(op.known for op in evidence.on("insert", record.job_id)):
            yield record.job_id, f"was brought by a run of {record.parent_job_id} that came to nothing"


def waiting_parents(evidence: Evidence) -> Iterator[Finding]:
    """S24: nobody waits for children that have all ended, and nobody goes on before they have."""
    children = _children(evidence)
    for record in evidence.records:
        own = children.get(record.job_id, ())
        if record.awaits is not None and evidence.ended and all(child.status in TERMINAL for child in own):
            yield record.job_id, "waits for its children, which have all ended"
        if not trimmed(record.history):
            yield from _went_on_too_early(evidence, record, own)


def _went_on_too_early(evidence: Evidence, parent: JobRecord, own: Sequence[JobRecord]) -> Iterator[Finding]:
    for waited, claimed in _returns(parent.history):
        called = _called(evidence, parent.job_id, waited)
        returned = [
            op.returned
            for op in evidence.on("claim", parent.job_id, Outcome.OK)
            if op.attempt == claimed and op.returned is not None
        ]
        for child in own:
            if not returned or len(generations(child.history)) > 1 or not _was_there(evidence, child, waited, called):
                continue
            ends = [op.invoked for op in evidence.on("apply", child.job_id) if op.known and op.item.target in TERMINAL]
            if child.status not in TERMINAL or (ends and min(ends) > min(returned)):
                yield parent.job_id, f"went on (attempt {claimed}) before its child {child.job_id} had ended"


def _returns(history: Sequence[HistoryEvent]) -> Iterator[tuple[int, int]]:
    """The attempts that waited, each with the one that went on after it."""
    waited: int | None = None
    for event in history:
        if event.event is Event.WAIT_FOR_CHILDREN:
            waited = event.attempt
        elif event.event is Event.CLAIM and waited is not None:
            yield waited, event.attempt
            waited = None
        elif event.event is Event.MANUAL_RETRY:
            waited = None


def _called(evidence: Evidence, job_id: str, attempt: int) -> Moment:
    """When the wait of an attempt was first asked for."""
    asked = [
        op.invoked
        for op in evidence.on("apply", job_id)
        if op.known and op.attempt == attempt and op.item.event is Event.WAIT_FOR_CHILDREN
    ]
    return min(asked, default=0)


def _was_there(evidence: Evidence, child: JobRecord, attempt: int, called: Moment) -> bool:
    """Certainly before the wait, or with it."""
    if evidence.born(child.job_id) < called:
        return True
    return any(
        job.job_id == child.job_id
        for verb in ("apply", "stage", "insert_children")
        for op in evidence.on(verb, child.parent_job_id or "", Outcome.OK)
        if op.attempt is not None and op.attempt <= attempt and (op.returned or NEVER) < NEVER
        for job in op.item.jobs
    )

"""Invariants of pausing and of counting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.clock import MICROS, Instant
from holdfast.lifecycle import Counted, Event, also_counted, counted
from holdfast.limits import COUNTERS_DAYS
from holdfast.store.types import HistoryEvent, JobRecord
from holdfast.testing.history.evidence import NEVER, Evidence, trimmed
from holdfast.testing.history.invariants_of_jobs import Finding
from holdfast.testing.history.operations import Moment, Outcome

_MINUTE = 60 * MICROS
_Key = tuple[Instant, str, str, Counted]  # minute, type, queue


def pausing(evidence: Evidence) -> Iterator[Finding]:
    """S20: from when a pause was acknowledged until someone asked to resume, the queue gives nothing."""
    pauses = {
        name: list(_pauses(evidence, name))
        for name in {op.item.queue for op in evidence.of("change_queue")}
        if name is not None
    }
    for op in evidence.of("claim", Outcome.OK):
        job = evidence.find(op.job_id)
        if job is None or op.item.repeat or op.returned is None:
            continue
        for begun, ended in pauses.get(job.queue, ()):
            if begun < op.invoked and op.returned < ended:
                yield op.job_id, f"attempt {op.attempt} was handed to {op.process} while queue {job.queue} was paused"


def _pauses(evidence: Evidence, queue: str) -> Iterator[tuple[Moment, Moment]]:
    changes = [op for op in evidence.of("change_queue") if op.item.queue == queue and op.known]
    for op in changes:
        if op.item.paused is True and op.outcome is Outcome.OK and op.returned is not None:
            resumed = [
                other.invoked
                for other in changes
                if other.item.paused is False and (other.returned or NEVER) > op.invoked
            ]
            yield op.returned, min(resumed, default=NEVER)


def counting(evidence: Evidence) -> Iterator[Finding]:
    """S21: the counters say how often each thing happened, as the histories do."""
    if evidence.counters is None:
        return
    types, since = _judged(evidence)
    happened: Counter[_Key] = Counter()
    for record in evidence.records:
        if record.job_type in types:
            happened.update(_happened(record))
    found: Counter[_Key] = Counter()
    for row in evidence.counters:
        if row.job_type in types:
            found[row.minute, row.job_type, row.queue, row.outcome] += row.count
    for key in sorted(happened.keys() | found.keys()):
        minute, job_type, queue, outcome = key
        if minute >= since and happened[key] != found[key]:
            yield (
                "",
                f"counted {found[key]} of {job_type} in {queue} as {outcome} in minute {minute};"
                f" their histories have {happened[key]}",
            )


def _judged(evidence: Evidence) -> tuple[set[str], Instant]:
    """Types of which every job is there with all of its history; and since when counters are kept."""
    left = {record.job_type for record in evidence.archive.values()}
    left |= {record.job_type for record in evidence.records if trimmed(record.history)}
    for item, _ in evidence.submissions:
        if item.job_type is not None and item.job_id not in evidence.by_id and evidence.may_be_gone(item.job_id):
            left.add(item.job_type)
    types = {record.job_type for record in evidence.records} - left
    latest = max((at for _, at in evidence.retirements), default=0)
    return types, latest - COUNTERS_DAYS * 86_400 * MICROS


def _happened(record: JobRecord) -> Iterator[_Key]:
    for event in record.history:
        for outcome in _outcomes(event):
            yield event.at - event.at % _MINUTE, record.job_type, record.queue, outcome


def _outcomes(event: HistoryEvent) -> Iterator[Counted]:
    if event.event is Event.REUSE and event.source is None:
        yield Counted.SUBMITTED
    outcome = counted(event.event, event.target)
    if outcome is not None:
        yield outcome
    if (beside := also_counted(event.event)) is not None:
        yield beside

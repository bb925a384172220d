"""Invariants that join what callers were told with what is stored."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from holdfast.lifecycle import Event, Status
from holdfast.store.types import HistoryEvent, JobRecord
from holdfast.testing.history.evidence import NEVER, Evidence, ends_a_claim, trimmed
from holdfast.testing.history.invariants_of_jobs import OF_A_CLAIM, Finding
from holdfast.testing.history.operations import Operation, Outcome, digest


def durable_acknowledgement(evidence: Evidence) -> Iterator[Finding]:
    """S1: what was acknowledged is there, or left by a retention whose time had come."""
    for job_id, op in evidence.acknowledged.items():
        if job_id not in evidence.by_id and not evidence.may_be_gone(job_id):
            yield job_id, f"was acknowledged to {op.process} and is not in the store"


def no_invention(evidence: Evidence) -> Iterator[Finding]:
    """S2: what is there was submitted, with this payload."""
    if not evidence.recorded:
        return
    submitted: dict[str, set[str | None]] = defaultdict(set)
    for item, op in evidence.submissions:
        if op.known:
            submitted[item.job_id].add(item.payload)
    for job_id in evidence.archive:
        if job_id not in submitted:
            yield job_id, "is in the archive and nobody submitted it"
    for record in evidence.records:
        if record.job_id not in submitted:
            yield record.job_id, "is in the store and nobody submitted it"
        elif digest(record.payload) not in submitted[record.job_id]:
            yield record.job_id, "has a payload that nobody submitted"


def conservation(evidence: Evidence) -> Iterator[Finding]:
    """S3: each job once, in one state, and the sums agree."""
    for job_id, times in Counter(record.job_id for record in evidence.records).items():
        if times > 1:
            yield job_id, f"is in the dump {times} times"
        if job_id in evidence.archive:
            yield job_id, "is among the jobs and in the archive"
    for record in evidence.records:
        if record.history and record.history[-1].target is not record.status:
            yield record.job_id, f"is {record.status}; its history says {record.history[-1].target}"
    if evidence.counts is not None:
        states = Counter(record.status.value for record in evidence.records)
        for status in Status:
            if states[status.value] != evidence.counts.get(status.value, 0):
                counted = evidence.counts.get(status.value, 0)
                yield "", f"{counted} jobs are counted as {status}, {states[status.value]} are found"
    if evidence.recorded:
        stored = evidence.by_id.keys() | evidence.archive.keys()
        told = {job_id for job_id in evidence.acknowledged if job_id in stored or not evidence.may_be_gone(job_id)}
        most = evidence.acknowledged.keys() | evidence.unknown | evidence.deleted
        if not len(told) <= len(stored) <= len(most):
            yield (
                "",
                f"{len(told)} jobs were acknowledged, {len(evidence.unknown)} are unknown, {len(stored)} stored",
            )


def fenced_calls(evidence: Evidence) -> Iterator[Finding]:
    """S5, the callers' half: nothing is granted to who does not hold the claim, or holds it no longer."""
    tokens: dict[tuple[str, int], set[str | None]] = defaultdict(set)
    for op in evidence.of("claim", Outcome.OK):
        if op.attempt is not None:
            tokens[op.job_id, op.attempt].add(op.item.token)
    unheard = {op.item.token for op in evidence.of("claim", Outcome.INFO)}
    for op, attempt in _granted(evidence):
        holders = tokens.get((op.job_id, attempt), unheard)
        if op.item.token not in holders:
            yield (
                op.job_id,
                f"{op.verb} by {op.process} was granted with a token that attempt {op.attempt} never had",
            )
        over = evidence.over(op.job_id, attempt)
        if op.verb != "apply" and op.invoked > over:
            yield (
                op.job_id,
                f"{op.verb} by {op.process} was granted after its claim (attempt {op.attempt}) was over",
            )


def _granted(evidence: Evidence) -> Iterator[tuple[Operation, int]]:
    for verb in ("apply", "extend", "note", "record_step", "insert_children", "stage"):
        for op in evidence.of(verb, Outcome.OK):
            if op.item.token is not None and op.attempt is not None:
                yield op, op.attempt


def attempts_are_single(evidence: Evidence) -> Iterator[Finding]:
    """S6, the callers' half: an attempt is handed out once."""
    tokens: dict[tuple[str, int | None], set[str | None]] = defaultdict(set)
    for op in evidence.of("claim", Outcome.OK):
        tokens[op.job_id, op.attempt].add(op.item.token)
    for (job_id, attempt), holders in tokens.items():
        if len(holders) > 1:
            yield job_id, f"attempt {attempt} was handed out to {len(holders)} claims"


def result_integrity(evidence: Evidence) -> Iterator[Finding]:
    """S8: the result is what the completing attempt handed in; no result without completion."""
    for record in evidence.records:
        if record.status is not Status.COMPLETED:
            if record.result is not None or record.result_artifact is not None:
                yield record.job_id, f"is {record.status} and has a result"
            continue
        end = record.history[-1]
        if end.event is Event.REUSE:
            donor = evidence.by_id.get(record.reused_from or "")
            if donor is not None and donor.status is Status.COMPLETED and donor.result != record.result:
                yield record.job_id, f"was reused from {donor.job_id} and has another result"
        elif evidence.recorded and record.result_artifact is None:
            handed_in = {op.item.result for op in evidence.on("apply", record.job_id) if _could_be(op, end)}
            if digest(record.result) not in handed_in:
                yield (
                    record.job_id,
                    f"has a result that attempt {end.attempt}, which completed it, did not hand in",
                )


def told_the_truth(evidence: Evidence) -> Iterator[Finding]:
    """S9: granted means it is in the log, refused means it is not; and nothing is in the log unasked."""
    if not evidence.recorded:
        return
    for record in evidence.records:
        if trimmed(record.history):
            continue
        yield from _grants_are_logged(evidence, record)
        yield from _log_was_asked_for(evidence, record)
    for verb in ("claim", "apply", "extend", "note", "record_step"):
        for op in evidence.of(verb, Outcome.OK):
            if op.job_id not in evidence.by_id and not evidence.may_be_gone(op.job_id):
                yield op.job_id, f"{verb} by {op.process} was granted on a job that is not there"


def _grants_are_logged(evidence: Evidence, record: JobRecord) -> Iterator[Finding]:
    claims = {event.attempt for event in record.history if event.event is Event.CLAIM}
    for op in evidence.on("claim", record.job_id, Outcome.OK):
        if op.attempt not in claims:
            yield record.job_id, f"attempt {op.attempt} was handed to {op.process} and is not in the history"
    logged = {_change(event.event, event.attempt, event.target) for event in record.history}
    known = Counter(_key(op) for op in evidence.on("apply", record.job_id) if op.known)
    for op in evidence.on("apply", record.job_id):
        present = _key(op) in logged
        if op.outcome is Outcome.OK and not present:
            yield record.job_id, f"{_says(op)} was granted and is not in the history"
        if op.outcome is Outcome.STALE and present and not known[_key(op)]:
            yield record.job_id, f"{_says(op)} was refused, yet it is in the history"
    yield from _refused_for_nothing(evidence, record)


def _refused_for_nothing(evidence: Evidence, record: JobRecord) -> Iterator[Finding]:
    """Who holds the claim is not refused: someone must have been able to end it before that."""
    tokens = {(op.attempt, op.item.token) for op in evidence.on("claim", record.job_id, Outcome.OK)}
    for op in evidence.on("apply", record.job_id, Outcome.STALE):
        if (op.attempt, op.item.token) not in tokens or op.returned is None:
            continue
        others = [
            other
            for other in evidence.on("apply", record.job_id)
            if other.known and ends_a_claim(other.item) and other.attempt == op.attempt
        ]
        if ends_a_claim(op.item) and not any(other.invoked < op.returned for other in others):
            yield record.job_id, f"{_says(op)} was refused, who held the job"


def _log_was_asked_for(evidence: Evidence, record: JobRecord) -> Iterator[Finding]:
    for event in record.history:
        if event.event is Event.CLAIM:
            heard = any(op.attempt == event.attempt for op in evidence.on("claim", record.job_id, Outcome.OK))
            if not heard and event.by not in evidence.unheard:
                yield record.job_id, f"attempt {event.attempt} was claimed for {event.by}, who did not ask"
        elif event.event in OF_A_CLAIM or event.event in EDITS:
            asked = any(_could_be(op, event) for op in evidence.on("apply", record.job_id))
            if not asked:
                yield (
                    record.job_id,
                    f"version {event.version} ({event.event}) is in the history and nobody asked for it",
                )


EDITS = frozenset({Event.CANCEL, Event.MANUAL_RETRY, Event.RESCHEDULE, Event.REPRIORITISE})


_Change = tuple[Event | None, int | None, Status | None]


def _change(event: Event | None, attempt: int | None, target: Status | None) -> _Change:
    """Whether one that is retried by hand has to wait is for the store to see."""
    return event, attempt, None if event is Event.MANUAL_RETRY else target


def _key(op: Operation) -> _Change:
    return _change(op.item.event, op.attempt, op.item.target)


def _could_be(op: Operation, event: HistoryEvent) -> bool:
    return op.known and _key(op) == _change(event.event, event.attempt, event.target)


def _says(op: Operation) -> str:
    return f"{op.item.event} of attempt {op.attempt} by {op.process}"


def batches(evidence: Evidence) -> Iterator[Finding]:
    """S14: a submission of many is stored as a whole or not at all; other batches answer each, in order."""
    carriers = Counter(op.job_id for op in evidence.of("insert") if op.known)
    for call in evidence.calls.values():
        first = call[0]
        if first.verb != "claim" and first.answers is not None and first.answers != first.size:
            yield (
                first.job_id,
                f"{first.verb} by {first.process} asked for {first.size} and was answered {first.answers}",
            )
        if first.verb != "insert" or first.size == 1:
            continue
        own = [op.job_id for op in call if carriers[op.job_id] - op.known == 0 and not op.answer.existing]
        stored = [job_id for job_id in own if job_id in evidence.by_id or evidence.may_be_gone(job_id)]
        if stored and len(stored) < len(own):
            missing = next(job_id for job_id in own if job_id not in stored)
            yield (
                missing,
                f"is missing from a batch of {first.process} of which {len(stored)} of {len(own)} are stored",
            )
    for op in evidence.of("insert", Outcome.ERROR):
        if not carriers[op.job_id] and evidence.find(op.job_id) is not None:
            yield op.job_id, f"was refused to {op.process} with an error, yet it is stored"


def repeatable(evidence: Evidence) -> Iterator[Finding]:
    """S16: the same call again has one effect and one answer."""
    answers: dict[str, set[str]] = defaultdict(set)
    for op in evidence.of("insert", Outcome.OK):
        if op.item.own_id:
            answers[op.job_id].add(op.answer.job_id)
    for job_id, answered in answers.items():
        if len(answered) > 1:
            yield job_id, f"was submitted again under its id and answered as {sorted(answered)}"
    for record in evidence.records:
        ends = Counter(event.attempt for event in record.history if ends_a_claim(event))
        for attempt, times in ends.items():
            if times > 1:
                yield record.job_id, f"attempt {attempt} was settled {times} times"
    yield from _settled_again(evidence)


def _settled_again(evidence: Evidence) -> Iterator[Finding]:
    """A settlement that was granted is granted again, as long as nothing else happened to the job."""
    granted: dict[tuple[object, ...], int] = {}
    for op in evidence.of("apply", Outcome.OK):
        if op.item.token is not None and op.returned is not None:
            key = (op.job_id, op.item.token, *_key(op))
            granted[key] = min(granted.get(key, NEVER), op.returned)
    for op in evidence.of("apply", Outcome.STALE, Outcome.GONE):
        first = granted.get((op.job_id, op.item.token, *_key(op)), NEVER)
        record = evidence.by_id.get(op.job_id)
        if first < op.invoked and record is not None and _could_be_key(record.history[-1], op):
            yield op.job_id, f"{_says(op)} was granted, and refused when it was repeated"


def _could_be_key(event: HistoryEvent, op: Operation) -> bool:
    return _change(event.event, event.attempt, event.target) == _key(op)

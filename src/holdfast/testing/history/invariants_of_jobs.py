"""Invariants that a job's own history and record must keep, whatever was asked of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.lifecycle import TERMINAL, Event, Status, allowed
from holdfast.limits import GIVE_BACKS_MAX, HISTORY_HEAD, SNOOZES_MAX
from holdfast.store.types import JobRecord
from holdfast.testing.history.evidence import FAILURES, Evidence, generations, trimmed

Finding = tuple[str, str]  # job_id, sentence

# Events that the holder of a claim writes, or that are decided on a claim.
OF_A_CLAIM = frozenset(
    {
        Event.COMPLETE,
        Event.RETRY,
        Event.EXHAUST,
        Event.DISCARD,
        Event.SNOOZE,
        Event.GIVE_BACK,
        Event.WAIT_FOR_CHILDREN,
        Event.RESCUE,
    }
)


def single_completion(evidence: Evidence) -> Iterator[Finding]:
    """S4: one completion per generation; an ended job changes only by a manual retry."""
    for record in evidence.records:
        for life in generations(record.history):
            completions = [event.version for event in life if event.target is Status.COMPLETED]
            if len(completions) > 1:
                yield record.job_id, f"was completed more than once, by versions {completions}"
        before = None
        for event in record.history:
            if before in TERMINAL and event.event is not Event.MANUAL_RETRY:
                yield (
                    record.job_id,
                    f"had ended ({before}), yet version {event.version} made it {event.target}",
                )
            before = event.target
        if record.status is Status.COMPLETED and record.result is not None and record.result_artifact is not None:
            yield record.job_id, "has two results, one inline and one as an artifact"


def fencing(evidence: Evidence) -> Iterator[Finding]:
    """S5, the log's half: what is decided on a claim happens while that claim is the current one."""
    for record in evidence.records:
        current, status = 0, None
        for event in record.history:
            if event.event is Event.CLAIM:
                current = event.attempt
            elif event.event in OF_A_CLAIM or (event.event is Event.CANCEL and event.source is Status.PROCESSING):
                if event.attempt != current and not _jumped(record, event.version):
                    yield (
                        record.job_id,
                        f"attempt {event.attempt} wrote {event.event} (version {event.version})"
                        f" while attempt {current} held the job",
                    )
                elif status is not Status.PROCESSING and not _jumped(record, event.version):
                    yield (
                        record.job_id,
                        f"attempt {event.attempt} wrote {event.event} (version {event.version})"
                        f" while the job was {status}",
                    )
            status = event.target


def version_chain(evidence: Evidence) -> Iterator[Finding]:
    """S6: versions 1, 2, 3 …; each event starts where the last one ended; attempts grow by one per claim."""
    for record in evidence.records:
        yield from ((record.job_id, sentence) for sentence in _chain(record))


def _chain(record: JobRecord) -> Iterator[str]:
    history = record.history
    if not history:
        yield "has no history"
        return
    version, attempt, status = 0, 0, None
    for event in history:
        if _jumped(record, event.version):
            version, attempt, status = event.version - 1, event.attempt, event.source
            attempt -= event.event is Event.CLAIM
        if event.version != version + 1:
            yield f"version {event.version} follows version {version}"
        if event.source != status:
            yield f"version {event.version} ({event.event}) starts from {event.source}; the job was {status}"
        if not allowed(event.event, event.source, event.target):
            yield f"version {event.version}: {event.event} from {event.source} to {event.target} is no edge"
        expected = attempt + (event.event is Event.CLAIM)
        if event.attempt != expected:
            yield f"version {event.version} ({event.event}) has attempt {event.attempt}, expected {expected}"
        version, status = event.version, event.target
        attempt = max(attempt, event.attempt)
    if record.version != version:
        yield f"the record is at version {record.version}, its history at {version}"
    if record.attempt != attempt:
        yield f"the record is at attempt {record.attempt}, its history at {attempt}"


def _jumped(record: JobRecord, version: int) -> bool:
    """This is the first event after the dropped middle."""
    return trimmed(record.history) and record.history[HISTORY_HEAD].version == version


def retry_bound(evidence: Evidence) -> Iterator[Finding]:
    """S10: failures count once, never beyond max_attempts; an exhausted job is failed, with a reason."""
    for record in evidence.records:
        if record.status is Status.FAILED and not (record.last_error or (record.history[-1].reason or "")):
            yield record.job_id, "is failed without a reason"
        if record.failures > record.max_attempts:
            yield record.job_id, f"has {record.failures} failures of at most {record.max_attempts}"
        if record.snoozes > SNOOZES_MAX or record.give_backs > GIVE_BACKS_MAX:
            yield record.job_id, f"counts {record.snoozes} snoozes and {record.give_backs} give-backs"
        if not trimmed(record.history):
            yield from ((record.job_id, sentence) for sentence in _budget(record))


def _budget(record: JobRecord) -> Iterator[str]:
    for life in generations(record.history):
        kinds = Counter(event.event for event in life)
        if kinds[Event.SNOOZE] > SNOOZES_MAX:
            yield f"was snoozed {kinds[Event.SNOOZE]} times, over the cap of {SNOOZES_MAX}"
        if kinds[Event.GIVE_BACK] > GIVE_BACKS_MAX:
            yield f"was given back {kinds[Event.GIVE_BACK]} times, over the cap of {GIVE_BACKS_MAX}"
        failures = 0
        for event in life:
            failures += event.event in FAILURES
            if event.event not in FAILURES:
                continue
            if event.target is Status.RETRYING and failures >= record.max_attempts:
                yield (
                    f"goes on after {failures} failures (version {event.version});"
                    f" max_attempts is {record.max_attempts}"
                )
            spent = event.event is Event.EXHAUST or (event.event is Event.RESCUE and event.target is Status.FAILED)
            if spent and failures < record.max_attempts:
                yield f"gave up after {failures} of {record.max_attempts} failures (version {event.version})"
    if record.failures != failures:
        yield f"counts {record.failures} failures; its history has {failures}"


def cancel_or_complete(evidence: Evidence) -> Iterator[Finding]:
    """S15: a generation ends cancelled or completed, never both; an acknowledged cancel is not undone."""
    for record in evidence.records:
        for life in generations(record.history):
            ends = {event.target: event.version for event in life if event.target in TERMINAL}
            if Status.CANCELLED in ends and Status.COMPLETED in ends:
                yield (
                    record.job_id,
                    f"was completed (version {ends[Status.COMPLETED]}) and cancelled"
                    f" (version {ends[Status.CANCELLED]}) in one life",
                )
    for op in evidence.of("apply"):
        acknowledged = op.outcome == "ok" and op.item.event is Event.CANCEL and op.item.token is None
        found = evidence.find(op.job_id)
        if not acknowledged or found is None:
            continue
        retried = any(
            later.item.event is Event.MANUAL_RETRY for later in evidence.on("apply", op.job_id) if later.known
        )
        if found.status is not Status.CANCELLED and not retried:
            yield op.job_id, f"was cancelled for {op.process}, acknowledged, and ended {found.status}"

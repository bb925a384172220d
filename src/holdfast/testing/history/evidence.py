"""Everything that is known of a run, indexed for the questions that invariants ask."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL, Event, Status
from holdfast.limits import HISTORY_HEAD
from holdfast.store.types import HistoryEvent, JobRecord
from holdfast.testing.history.operations import Moment, Operation, Outcome

FAILURES = frozenset({Event.RETRY, Event.EXHAUST, Event.DISCARD, Event.RESCUE})
NEVER: Moment = 2**63


class Edge(msgspec.Struct, frozen=True):
    """A dependency as the engine stores it. The port has no verb for these: tests read the file."""

    parent: str
    child: str
    met: bool


class Evidence:
    """`operations` None: only the dump is known, and what joins operations with it is not judged.

    `ended` says that the run was given time to finish: what is still unfinished is a violation, not a matter
    of time. `dead_workers` are those whose processes were seen to die: their claims may be rescued before the
    lease ends.
    """

    def __init__(
        self,
        records: Iterable[JobRecord],
        operations: Iterable[Operation] | None = None,
        *,
        counts: Mapping[str, int] | None = None,
        edges: Iterable[Edge] | None = None,
        dead_workers: Iterable[str] = (),
        ended: bool = True,
    ) -> None:
        self.records = tuple(records)
        self.recorded = operations is not None
        self.operations = tuple(operations or ())
        self.counts = counts
        self.edges = None if edges is None else tuple(edges)
        self.dead_workers = frozenset(dead_workers)
        self.ended = ended

    @cached_property
    def by_id(self) -> dict[str, JobRecord]:
        return {record.job_id: record for record in self.records}

    @cached_property
    def by_verb(self) -> dict[str, list[Operation]]:
        found: dict[str, list[Operation]] = defaultdict(list)
        for operation in self.operations:
            found[operation.verb].append(operation)
        return found

    def of(self, verb: str, *outcomes: Outcome) -> Iterator[Operation]:
        for operation in self.by_verb.get(verb, ()):
            if not outcomes or operation.outcome in outcomes:
                yield operation

    @cached_property
    def by_job(self) -> dict[tuple[str, str], list[Operation]]:
        """(verb, job_id) → its operations; a claim nobody heard back from names no job and is not here."""
        found: dict[tuple[str, str], list[Operation]] = defaultdict(list)
        for operation in self.operations:
            if operation.job_id:
                found[operation.verb, operation.job_id].append(operation)
        return found

    def on(self, verb: str, job_id: str, *outcomes: Outcome) -> Iterator[Operation]:
        for operation in self.by_job.get((verb, job_id), ()):
            if not outcomes or operation.outcome in outcomes:
                yield operation

    @cached_property
    def deleted(self) -> frozenset[str]:
        """Jobs that someone asked to purge."""
        return frozenset(operation.job_id for operation in self.of("purge") if operation.known)

    @cached_property
    def calls(self) -> dict[tuple[str, int], list[Operation]]:
        """Operations of one call together."""
        found: dict[tuple[str, int], list[Operation]] = defaultdict(list)
        for operation in self.operations:
            found[operation.process, operation.number].append(operation)
        return found

    @cached_property
    def process_of(self) -> dict[str, str]:
        """worker_id → the process that claimed under that name."""
        return {op.item.worker: op.process for op in self.of("claim") if op.item.worker is not None}

    @cached_property
    def unheard(self) -> frozenset[str | None]:
        """Workers that died, or were cut off, while they claimed: nobody knows what they took."""
        return frozenset(op.item.worker for op in self.of("claim", Outcome.INFO))

    @cached_property
    def last_sign(self) -> dict[str, Moment]:
        """process → when it last began an operation: until then it lived."""
        return {operation.process: operation.invoked for operation in self.operations}

    def over(self, job_id: str, attempt: int) -> Moment:
        """From this moment the claim of this attempt was certainly over."""
        return self._over.get((job_id, attempt), NEVER)

    @cached_property
    def _over(self) -> dict[tuple[str, int], Moment]:
        found: dict[tuple[str, int], Moment] = {}
        for op in self.of("apply", Outcome.OK):
            if op.item.source is Status.PROCESSING and op.returned is not None and op.attempt is not None:
                key = (op.job_id, op.attempt)
                found[key] = min(found.get(key, NEVER), op.returned)
        for op in self.of("claim", Outcome.OK):
            if op.returned is not None and op.attempt is not None:
                key = (op.job_id, op.attempt - 1)
                found[key] = min(found.get(key, NEVER), op.returned)
        return found

    def born(self, job_id: str) -> Moment:
        """From this moment the job was certainly stored."""
        answers = [
            op.returned for op in self.of_answered(job_id) if op.outcome is Outcome.OK and op.returned is not None
        ]
        return min(answers, default=NEVER)

    def of_answered(self, job_id: str) -> Sequence[Operation]:
        return self._answered.get(job_id, ())

    @cached_property
    def _answered(self) -> dict[str, list[Operation]]:
        found: dict[str, list[Operation]] = defaultdict(list)
        for op in self.of("insert"):
            found[op.answer.job_id or op.job_id].append(op)
        return found

    def lives(self, job_id: str) -> list[tuple[Moment, Moment]]:
        """For each generation the span in which the job was certainly active: from when its beginning had
        returned to when its end was called."""
        record = self.by_id[job_id]
        spans = []
        for life in generations(record.history):
            begun = self.born(job_id) if life[0].event is not Event.MANUAL_RETRY else self._retried(job_id, life[0])
            spans.append((begun, self._end_called(job_id, life[-1])))
        return spans

    def _retried(self, job_id: str, event: HistoryEvent) -> Moment:
        returned = [
            op.returned
            for op in self.on("apply", job_id, Outcome.OK)
            if op.item.event is Event.MANUAL_RETRY and op.item.version == event.version - 1 and op.returned
        ]
        return min(returned, default=NEVER)

    def _end_called(self, job_id: str, event: HistoryEvent) -> Moment:
        if event.target not in TERMINAL:
            return NEVER
        called = [
            op.invoked
            for op in self.on("apply", job_id)
            if op.known and (op.item.event, op.attempt) == (event.event, event.attempt)
        ]
        return min(called, default=0)  # ended by something else: the end of a job that it depended on

    def end_done(self, job_id: str) -> Moment:
        """From this moment the job had certainly ended, for good."""
        record = self.by_id.get(job_id)
        if record is None or any(event.event is Event.MANUAL_RETRY for event in record.history):
            return NEVER
        ends = [
            op.returned
            for op in self.on("apply", job_id, Outcome.OK)
            if op.item.target in TERMINAL and op.returned is not None
        ]
        return min(ends, default=NEVER)

    def leases(self, job_id: str, attempt: int) -> list[tuple[Moment, Instant]]:
        """(acknowledged at, expiry) of one claim, in order."""
        found = [
            (op.returned, op.answer.lease)
            for op in self.on("claim", job_id, Outcome.OK)
            if op.attempt == attempt and op.returned is not None and op.answer.lease is not None
        ]
        found += [
            (op.returned, op.item.lease)
            for op in self.on("extend", job_id, Outcome.OK)
            if op.attempt == attempt and op.returned is not None and op.item.lease is not None
        ]
        return sorted(found)


def trimmed(history: Sequence[HistoryEvent]) -> bool:
    """The middle of a long history is dropped; the versions on both sides tell."""
    return len(history) > HISTORY_HEAD and history[HISTORY_HEAD].version != HISTORY_HEAD + 1


def generations(history: Sequence[HistoryEvent]) -> list[list[HistoryEvent]]:
    """A job's life, cut where someone retried it by hand."""
    lives: list[list[HistoryEvent]] = [[]]
    for event in history:
        if event.event is Event.MANUAL_RETRY:
            lives.append([])
        lives[-1].append(event)
    return lives

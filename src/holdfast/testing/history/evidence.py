"""Everything that is known of a run, indexed for the questions that invariants ask."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL, Event, Status
from holdfast.limits import HISTORY_HEAD
from holdfast.store.types import Counter, HistoryEvent, JobRecord, RetentionPolicy, Schedule
from holdfast.testing.history.operations import Answer, Item, Moment, Operation, Outcome

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
    lease ends. `archive` are the records of archived jobs, `schedules` and `counters` what is stored of these in the
    end, `rows` what can be read of result tables: (job, table) → digests. What is None is not judged.
    """

    def __init__(
        self,
        records: Iterable[JobRecord],
        operations: Iterable[Operation] | None = None,
        *,
        counts: Mapping[str, int] | None = None,
        edges: Iterable[Edge] | None = None,
        archive: Iterable[JobRecord] = (),
        schedules: Iterable[Schedule] | None = None,
        counters: Iterable[Counter] | None = None,
        rows: Mapping[tuple[str, str], Iterable[str]] | None = None,
        dead_workers: Iterable[str] = (),
        ended: bool = True,
    ) -> None:
        self.records = tuple(records)
        self.recorded = operations is not None
        self.operations = tuple(operations or ())
        self.counts = counts
        self.edges = None if edges is None else tuple(edges)
        self.archive = {record.job_id: record for record in archive}
        self.schedules = None if schedules is None else tuple(schedules)
        self.counters = None if counters is None else tuple(counters)
        self.rows = None if rows is None else {place: tuple(found) for place, found in rows.items()}
        self.dead_workers = frozenset(dead_workers)
        self.ended = ended

    @cached_property
    def by_id(self) -> dict[str, JobRecord]:
        return {record.job_id: record for record in self.records}

    def find(self, job_id: str) -> JobRecord | None:
        """As it stands, or as the archive has it."""
        return self.by_id.get(job_id) or self.archive.get(job_id)

    @cached_property
    def by_verb(self) -> dict[str, list[Operation]]:
        found: dict[str, list[Operation]] = defaultdict(list)
        for operation in (*self.operations, *self.brought):
            found[operation.verb].append(operation)
        return found

    @cached_property
    def brought(self) -> tuple[Operation, ...]:
        """Children that came with something else, as inserts: with a settlement, or of a running attempt."""
        settled: dict[tuple[str, int | None], list[Operation]] = defaultdict(list)
        found: list[Operation] = []
        for operation in self.operations:
            if operation.verb in ("apply", "insert_children"):
                found += _inserts(operation)
            if operation.verb == "apply" and operation.item.staged is not None:
                settled[operation.job_id, operation.attempt].append(operation)
        for operation in self.operations:
            if operation.verb == "stage" and operation.known:
                for settlement in settled[operation.job_id, operation.attempt]:
                    found += self._unpacked(operation, settlement)
        return tuple(found)

    def _unpacked(self, staging: Operation, settlement: Operation) -> Iterator[Operation]:
        """Nothing says when they are stored, only that they are in the end."""
        outcome = settlement.outcome
        if outcome is Outcome.OK and not self.ended:
            outcome = Outcome.INFO
        for insert in _inserts(staging):
            yield msgspec.structs.replace(insert, outcome=outcome, invoked=settlement.invoked, returned=None)

    def of(self, verb: str, *outcomes: Outcome) -> Iterator[Operation]:
        for operation in self.by_verb.get(verb, ()):
            if not outcomes or operation.outcome in outcomes:
                yield operation

    @cached_property
    def by_job(self) -> dict[tuple[str, str], list[Operation]]:
        """(verb, job_id) → its operations; a claim nobody heard back from names no job and is not here."""
        found: dict[tuple[str, str], list[Operation]] = defaultdict(list)
        for operation in (*self.operations, *self.brought):
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
    def submissions(self) -> list[tuple[Item, Operation]]:
        """Every job that was asked for, by a caller or by a tick of a schedule."""
        inserted = [(op.item, op) for op in self.of("insert")]
        return inserted + [(job, op) for op in self.of("fire") for job in op.item.jobs]

    @cached_property
    def acknowledged(self) -> dict[str, Operation]:
        """The jobs that someone was told are stored."""
        told = {op.answer.job_id: op for op in self.of("insert", Outcome.OK)}
        return told | {job.job_id: op for op in self.of("fire", Outcome.OK) for job in op.item.jobs}

    @cached_property
    def unknown(self) -> frozenset[str]:
        """Jobs of which nobody knows whether they were stored."""
        return frozenset(item.job_id for item, op in self.submissions if op.outcome is Outcome.INFO)

    def may_be_gone(self, job_id: str) -> bool:
        """It is in the archive, or someone purged it, or its time in the archive was over too."""
        return job_id in self.archive or job_id in self.deleted or self._may_be_dropped(job_id)

    def _may_be_dropped(self, job_id: str) -> bool:
        ends = [(op.now, op.item.target) for op in self._ends(job_id)]
        kind = self._types.get(job_id)
        since, status = min(ends, default=(0, None))  # ended by the end of another: nobody was told when
        archived = [at for policy, at in self.retirements if _over(policy, kind, status, since, at)]
        return any(
            policy.archive_micros is not None and min(archived, default=at) < at - policy.archive_micros
            for policy, at in self.retirements
        )

    @cached_property
    def _types(self) -> dict[str, str | None]:
        return {item.job_id: item.job_type for item, _ in self.submissions}

    @cached_property
    def retirements(self) -> list[tuple[RetentionPolicy, Instant]]:
        """Steps of retention that may have had an effect: by which policy, and at what time."""
        steps = ((op.item.policy, op.now) for op in self.of("retire") if op.known)
        return [(policy, at) for policy, at in steps if policy is not None]

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
            if ends_a_claim(op.item) and op.returned is not None and op.attempt is not None:
                key = (op.job_id, op.attempt)
                found[key] = min(found.get(key, NEVER), op.returned)
        for op in self.of("claim", Outcome.OK):
            if op.returned is not None and op.attempt is not None:
                key = (op.job_id, op.attempt - 1)
                found[key] = min(found.get(key, NEVER), op.returned)
        return found

    def asked_for(self, job_id: str) -> Moment:
        """Before this moment the job was certainly not stored."""
        return min((op.invoked for op in self.on("insert", job_id)), default=NEVER)

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
        record = self.by_id.get(job_id)
        if record is None:  # archived: its history is gone, and all that is known is when it first ended
            return [(self.born(job_id), min((op.invoked for op in self._ends(job_id)), default=0))]
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

    def retries_by_hand(self, record: JobRecord) -> int:
        """By its history; or, where that is gone with the archive, by what callers asked."""
        if record.archived_at is None:
            return len(generations(record.history)) - 1
        asked = (op for op in self.on("apply", record.job_id) if op.known)
        return sum(op.item.event is Event.MANUAL_RETRY for op in asked)

    def end_done(self, job_id: str) -> Moment:
        """From this moment the job had certainly ended, for good."""
        if any(op.item.event is Event.MANUAL_RETRY for op in self.on("apply", job_id) if op.known):
            return NEVER
        ends = [op.returned for op in self._ends(job_id) if op.outcome is Outcome.OK and op.returned is not None]
        return min(ends, default=NEVER)

    def _ends(self, job_id: str) -> list[Operation]:
        return [op for op in self.on("apply", job_id) if op.known and op.item.target in TERMINAL]

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


def _inserts(bringing: Operation) -> Iterator[Operation]:
    jobs = bringing.item.jobs
    answers = bringing.answer.jobs or [Answer(job_id=job.job_id, outcome=bringing.outcome) for job in jobs]
    for job, answer in zip(jobs, answers, strict=True):
        yield msgspec.structs.replace(bringing, verb="insert", item=job, answer=answer, size=1, answers=None)


def ends_a_claim(change: Item | HistoryEvent) -> bool:
    """A running job that gets another priority runs on."""
    return change.source is Status.PROCESSING and change.target is not Status.PROCESSING


def over_its_time(policy: RetentionPolicy, job_type: str | None, status: Status, ended: Instant, at: Instant) -> bool:
    """Whether a job that ended so may be archived."""
    keep = policy.by_type.get(job_type or "", policy.keep)
    spans = {
        Status.COMPLETED: keep.completed_micros,
        Status.FAILED: keep.failed_micros,
        Status.CANCELLED: keep.cancelled_micros,
    }
    span = spans.get(status)
    named = not policy.job_types or job_type in policy.job_types
    return named and span is not None and ended < at - span


def _over(policy: RetentionPolicy, job_type: str | None, status: Status | None, since: Instant, at: Instant) -> bool:
    ways = TERMINAL if status is None else (status,)
    return any(over_its_time(policy, job_type, way, since, at) for way in ways)


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

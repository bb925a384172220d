"""The evidence of a run: logged operations of every process and stored records, indexed for the invariants."""

from __future__ import annotations

import hashlib
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import msgspec

from backstay.clock import Instant
from backstay.core.records import Counter, HistoryEvent, JobRecord, RetentionPolicy, Schedule
from backstay.core.states import TERMINAL, Event, Status
from backstay.limits import HISTORY_HEAD

Moment = int  # nanoseconds of the machine's monotonic clock: comparable between its processes


class Outcome(StrEnum):
    OK = "ok"
    STALE = "stale"  # refused: the claim, the version that the editor saw, or the key is no longer valid
    GONE = "gone"  # refused: no such job
    ERROR = "error"  # refused: nothing was stored
    INFO = "info"  # unknown: the process died, or the error leaves it open


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for one job, queue or schedule. Only the fields of its verb are set."""

    job_id: str = ""
    job_type: str | None = None
    queue: str | None = None
    event: Event | None = None
    source: Status | None = None
    target: Status | None = None
    attempt: int | None = None
    version: int | None = None
    token: str | None = None
    worker: str | None = None
    lease: Instant | None = None
    payload: str | None = None
    result: str | None = None
    scheduled_for: Instant | None = None
    dedup_key: str | None = None
    dedup_until: Instant | None = None
    depends_on: tuple[str, ...] = ()
    own_id: bool = False
    repeat: bool = False
    paused: bool | None = None
    most: int | None = None  # jobs of a type that may run at once; 0: no limit
    schedule: str | None = None
    tick_at: Instant | None = None
    due_at: Instant | None = None
    next_at: Instant | None = None
    jobs: tuple[Item, ...] = ()  # of a firing; children of a settlement, a part or a running attempt
    parent: str | None = None
    trigger_rule: str | None = None
    staged: int | None = None  # the number of parts in which a settlement's children were staged
    part: int | None = None
    table: str | None = None
    rows: tuple[str, ...] = ()  # digests
    definition: Schedule | None = None
    policy: RetentionPolicy | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The answer for one job. A claim's answers name jobs that its request did not."""

    outcome: Outcome = Outcome.OK
    job_id: str = ""
    attempt: int | None = None
    lease: Instant | None = None
    existing: bool = False
    archived: int = 0
    dropped: int = 0
    jobs: tuple[Answer, ...] = ()  # for each of the item's jobs, if the verb answers for these


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One job's part of one call. A call for many jobs is many operations with the same process and number."""

    process: str
    number: int
    verb: str
    item: Item
    outcome: Outcome
    invoked: Moment
    returned: Moment | None = None
    now: Instant = 0
    answer: Answer = Answer()
    size: int = 1  # jobs in the call
    answers: int | None = None  # jobs answered for

    @property
    def job_id(self) -> str:
        return self.item.job_id or self.answer.job_id

    @property
    def attempt(self) -> int | None:
        return self.item.attempt if self.item.attempt is not None else self.answer.attempt

    @property
    def known(self) -> bool:
        """Whether it may have had an effect."""
        return self.outcome in (Outcome.OK, Outcome.INFO)


class _Invoke(msgspec.Struct, frozen=True, tag="invoke"):
    number: int
    at: Moment
    verb: str
    now: Instant
    items: tuple[Item, ...]


class _Return(msgspec.Struct, frozen=True, tag="return"):
    number: int
    at: Moment
    outcome: Outcome
    answers: tuple[Answer, ...] = ()
    why: str = ""


_line = msgspec.json.Decoder(_Invoke | _Return)


def digest(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode()).hexdigest()[:24]


def row_digest(values: Sequence[object]) -> str:
    return str(digest(repr(tuple(values))))


class OperationLog:
    """The log file of one process. Every line is a single write to the kernel, which outlives the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        self._number = 0

    def invoke(self, verb: str, items: Iterable[Item], now: Instant = 0) -> int:
        self._number += 1
        self._write(_Invoke(self._number, time.monotonic_ns(), verb, now, tuple(items)))
        return self._number

    def returned(self, number: int, outcome: Outcome, answers: Iterable[Answer] = (), why: str = "") -> None:
        self._write(_Return(number, time.monotonic_ns(), outcome, tuple(answers), why))

    def close(self) -> None:
        os.close(self._descriptor)

    def _write(self, line: _Invoke | _Return) -> None:
        encoded = msgspec.json.encode(line) + b"\n"
        if os.write(self._descriptor, encoded) != len(encoded):
            raise OSError(f"{self.path}: a line was cut short")


def read_operations(paths: Iterable[Path]) -> list[Operation]:
    """Return the operations of all processes, in the order of their calls."""
    operations = [operation for path in paths for operation in _read(path)]
    operations.sort(key=lambda operation: operation.invoked)
    return operations


def _read(path: Path) -> Iterator[Operation]:
    lines = path.read_bytes().split(b"\n")
    # Text after the last newline was cut off by a kill: such an invoke was never sent, such a return is unknown.
    open_calls: dict[int, _Invoke] = {}
    for line in map(_line.decode, lines[:-1]):
        match line:
            case _Invoke():
                open_calls[line.number] = line
            case _Return():
                yield from _join(path.stem, open_calls.pop(line.number), line)
    for call in open_calls.values():
        yield from _join(path.stem, call, None)


def _join(process: str, call: _Invoke, end: _Return | None) -> Iterator[Operation]:
    outcome = Outcome.INFO if end is None else end.outcome
    answered = end is not None and outcome is Outcome.OK
    pairs: Sequence[tuple[Item, Answer]]
    if answered and call.verb == "claim":
        pairs = [(call.items[0], answer) for answer in end.answers] if end else []
    elif answered and end is not None and len(end.answers) == len(call.items):
        pairs = list(zip(call.items, end.answers, strict=True))
    else:
        pairs = [(item, Answer(outcome=outcome)) for item in call.items]
    for item, answer in pairs:
        yield Operation(
            process=process,
            number=call.number,
            verb=call.verb,
            item=item,
            outcome=answer.outcome,
            invoked=call.at,
            returned=None if end is None else end.at,
            now=call.now,
            answer=answer,
            size=len(call.items),
            answers=len(end.answers) if answered and end else None,
        )


FAILURES = frozenset({Event.RETRY, Event.EXHAUST, Event.DISCARD, Event.RESCUE})
NEVER: Moment = 2**63


class Edge(msgspec.Struct, frozen=True):
    """A dependency as the engine stores it. The port has no verb for these: tests read the file."""

    parent: str
    child: str
    met: bool


class Evidence:
    """The evidence. `operations` None: only the dump is known, and invariants that need operations are not checked.

    `ended` says that the run had time to finish: an unfinished job is a violation. `dead_workers` are those whose
    processes were seen to die: their claims may be rescued before the lease ends. `archive` are the records of archived
    jobs, `schedules` and `counters` what is stored of these in the end, `rows` what can be read of result tables: (job,
    table) → digests. What is None is not checked.
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
        """Return the record of a job, archived or not."""
        return self.by_id.get(job_id) or self.archive.get(job_id)

    @cached_property
    def by_verb(self) -> dict[str, list[Operation]]:
        found: dict[str, list[Operation]] = defaultdict(list)
        for operation in (*self.operations, *self.brought):
            found[operation.verb].append(operation)
        return found

    @cached_property
    def brought(self) -> tuple[Operation, ...]:
        """Return children as inserts: those of a settlement, or of a running attempt."""
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
        """Return staged children. When they are stored is unknown; in the end they are."""
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
        """(verb, job_id) → its operations; a claim without an answer names no job and is not included."""
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
        """Jobs that a caller purged."""
        return frozenset(operation.job_id for operation in self.of("purge") if operation.known)

    @cached_property
    def submissions(self) -> list[tuple[Item, Operation]]:
        """Every submitted job, by a caller or by a tick of a schedule."""
        inserted = [(op.item, op) for op in self.of("insert")]
        return inserted + [(job, op) for op in self.of("fire") for job in op.item.jobs]

    @cached_property
    def acknowledged(self) -> dict[str, Operation]:
        """The jobs whose submit was acknowledged."""
        told = {op.answer.job_id: op for op in self.of("insert", Outcome.OK)}
        return told | {job.job_id: op for op in self.of("fire", Outcome.OK) for job in op.item.jobs}

    @cached_property
    def unknown(self) -> frozenset[str]:
        """Jobs of which it is unknown whether they were stored."""
        return frozenset(item.job_id for item, op in self.submissions if op.outcome is Outcome.INFO)

    def may_be_gone(self, job_id: str) -> bool:
        """Return whether a job may be absent: archived, purged, or its archive row has expired."""
        return job_id in self.archive or job_id in self.deleted or self._may_be_dropped(job_id)

    def _may_be_dropped(self, job_id: str) -> bool:
        ends = [(op.now, op.item.target) for op in self._ends(job_id)]
        kind = self._types.get(job_id)
        since, status = min(ends, default=(0, None))  # ended by the end of another job: no caller knows when
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
        """Steps of retention that may have had an effect, with policy and time."""
        steps = ((op.item.policy, op.now) for op in self.of("retire") if op.known)
        return [(policy, at) for policy, at in steps if policy is not None]

    @cached_property
    def calls(self) -> dict[tuple[str, int], list[Operation]]:
        """Operations grouped by call."""
        found: dict[tuple[str, int], list[Operation]] = defaultdict(list)
        for operation in self.operations:
            found[operation.process, operation.number].append(operation)
        return found

    @cached_property
    def process_of(self) -> dict[str, str]:
        """worker_id → the process that claimed with that id."""
        return {op.item.worker: op.process for op in self.of("claim") if op.item.worker is not None}

    @cached_property
    def unheard(self) -> frozenset[str | None]:
        """Workers that died or lost their connection during a claim: what they claimed is unknown."""
        return frozenset(op.item.worker for op in self.of("claim", Outcome.INFO))

    @cached_property
    def last_sign(self) -> dict[str, Moment]:
        """process → when it last began an operation: until then it was alive."""
        return {operation.process: operation.invoked for operation in self.operations}

    def over(self, job_id: str, attempt: int) -> Moment:
        """Return the moment from which the claim of this attempt was certainly over."""
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
        """Return the moment before which the job was certainly not stored."""
        return min((op.invoked for op in self.on("insert", job_id)), default=NEVER)

    def born(self, job_id: str) -> Moment:
        """Return the moment from which the job was certainly stored."""
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
        """Return the time span of each generation in which the job was certainly active: from the return of the call
        that started it to the call that ended it."""
        record = self.by_id.get(job_id)
        if record is None:  # archived: its history is gone, and only its first end is known
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
        return min(called, default=0)  # ended by the end of a dependency

    def retries_by_hand(self, record: JobRecord) -> int:
        """Count manual retries from its history or, if that was archived, from the calls."""
        if record.archived_at is None:
            return len(generations(record.history)) - 1
        asked = (op for op in self.on("apply", record.job_id) if op.known)
        return sum(op.item.event is Event.MANUAL_RETRY for op in asked)

    def end_done(self, job_id: str) -> Moment:
        """Return the moment from which the job had certainly ended, finally."""
        if any(op.item.event is Event.MANUAL_RETRY for op in self.on("apply", job_id) if op.known):
            return NEVER
        ends = [op.returned for op in self._ends(job_id) if op.outcome is Outcome.OK and op.returned is not None]
        return min(ends, default=NEVER)

    def _ends(self, job_id: str) -> list[Operation]:
        return [op for op in self.on("apply", job_id) if op.known and op.item.target in TERMINAL]

    def leases(self, job_id: str, attempt: int) -> list[tuple[Moment, Instant]]:
        """Return (acknowledged at, expiry) of one claim, in order."""
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
    """Return whether an event ends a claim: a running job whose priority changes continues."""
    return change.source is Status.PROCESSING and change.target is not Status.PROCESSING


def over_its_time(policy: RetentionPolicy, job_type: str | None, status: Status, ended: Instant, at: Instant) -> bool:
    """Return whether a job with this end may be archived."""
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
    """Return whether the middle of a long history was dropped; the versions on both sides tell."""
    return len(history) > HISTORY_HEAD and history[HISTORY_HEAD].version != HISTORY_HEAD + 1


def generations(history: Sequence[HistoryEvent]) -> list[list[HistoryEvent]]:
    """Split a job's history at manual retries."""
    lives: list[list[HistoryEvent]] = [[]]
    for event in history:
        if event.event is Event.MANUAL_RETRY:
            lives.append([])
        lives[-1].append(event)
    return lives

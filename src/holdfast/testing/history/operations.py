"""Client operations: written by the processes under test, read by the checker."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import Event, Status
from holdfast.store.types import RetentionPolicy, Schedule

Moment = int  # nanoseconds of the machine's monotonic clock: comparable between its processes


class Outcome(StrEnum):
    OK = "ok"
    STALE = "stale"  # refused: the claim, what the editor saw, or the key no longer holds
    GONE = "gone"  # refused: no such job
    ERROR = "error"  # refused: nothing was stored
    INFO = "info"  # nobody knows: the process died, or the error leaves it open


class Item(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked for one job, queue or schedule. Only the fields that its verb has are set."""

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
    schedule: str | None = None
    tick_at: Instant | None = None
    due_at: Instant | None = None
    next_at: Instant | None = None
    jobs: tuple[Item, ...] = ()  # of a firing; children that a settlement, a part or a running attempt brings
    parent: str | None = None
    trigger_rule: str | None = None
    staged: int | None = None  # in how many parts a settlement's children were handed over before it
    part: int | None = None
    table: str | None = None
    rows: tuple[str, ...] = ()  # digests
    definition: Schedule | None = None
    policy: RetentionPolicy | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came back for one job. A claim's answers name jobs that its request did not."""

    outcome: Outcome = Outcome.OK
    job_id: str = ""
    attempt: int | None = None
    lease: Instant | None = None
    existing: bool = False
    archived: int = 0
    dropped: int = 0
    jobs: tuple[Answer, ...] = ()  # for each of the item's jobs, where the verb answers for these


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One job's part of one call. A call on many jobs is many operations with the same process and number."""

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
        """It may have had an effect."""
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
    """The file of one process. Every line is one write to the kernel, which outlives the process."""

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
    """Every process's operations, in the order in which they were called."""
    operations = [operation for path in paths for operation in _read(path)]
    operations.sort(key=lambda operation: operation.invoked)
    return operations


def _read(path: Path) -> Iterator[Operation]:
    lines = path.read_bytes().split(b"\n")
    # What follows the last newline was cut by a kill: an invoke was then never sent, a return is unknown.
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

"""`Run`, one attempt of one job from claim to settlement, with what it has reported; `Runs`, all of a worker.

How a run is asked to stop depends on where it executes: a coroutine is cancelled, a thread is told, a child process is
killed. An `Item` is one job of a batch, and a `Call` is the one call that runs them all.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, cast

import msgspec

from backstay import codec, ids, limits
from backstay.clock import MICROS, Instant
from backstay.core.lifecycle import GivenBack, Outcome, Raised, Said
from backstay.core.output import OutputBuffer
from backstay.core.records import ClaimedJob, Effect, ErrorEntry, Hold, JobRecord, NewJob, Note, Staged
from backstay.core.result_tables import RowBatch
from backstay.core.waits import StepKind
from backstay.files.local import StoredFile
from backstay.handlers import BatchHandler, Handler
from backstay.job import REPORTED_ZERO
from backstay.limits import CHILDREN_PART_MAX, STAGED_PART_BYTES_MAX

TIMED_OUT = "timed out"
SHUT_DOWN = "worker is stopping"
LOST = "claim lost"


class Named(Protocol):
    """A job, as logs name it."""

    @property
    def job_id(self) -> str: ...

    @property
    def job_type(self) -> str: ...

    @property
    def attempt(self) -> int: ...


class Execution:
    """Something that can be stopped: a job or a call. Most end without being stopped, so what a stop needs is a class
    default.

    It is not an abstract class of `abc`: an isinstance() check on one costs more than starting a job.
    """

    timeout_micros: int

    cancelled: threading.Event | None = None  # only threads wait on it
    begun = False
    ended = False  # the handler has returned: its contexts are dead
    stop_reason: str | None = None
    task: asyncio.Task[None] | None = None
    deadline = math.inf  # on the event loop's clock; set when the handler begins
    kill: Callable[[], None] | None = None  # how to end a child process

    def stop(self, reason: str) -> None:
        """Ask the handler to end, as firmly as its kind allows. The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
        if self.cancelled is not None:
            self.cancelled.set()
        if self.kill is not None:
            self.kill()
        elif self.task is not None and self.cancelled is None and self.begun:
            # A task that is cancelled before its first step never runs at all, and would never free its slot; one that
            # has not begun looks at stop_reason when it does.
            self.task.cancel()

    @property
    def is_stopped(self) -> bool:
        return self.stop_reason is not None

    def stopped(self, attempt: int, now: Instant) -> Outcome:
        """Return the outcome of a job whose execution was stopped. After a lost claim it does not matter, because it is
        never stored."""
        if self.stop_reason == SHUT_DOWN:
            return GivenBack(SHUT_DOWN)
        seconds = self.timeout_micros / MICROS
        return Raised(ErrorEntry(attempt, now, "JobTimeout", f"ran longer than its timeout of {seconds:g} s"))

    @property
    def is_over(self) -> bool:
        """Whether it is settled or lost, so that nothing it still does counts."""
        raise NotImplementedError

    @property
    def jobs(self) -> Sequence[Named]:
        """The jobs that it runs: one, or those of a call."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        first, *others = self.jobs
        if others:
            return f"a batch of {len(others) + 1} {first.job_type} jobs ({first.job_id}, …)"
        return f"{first.job_type} job {first.job_id} attempt {first.attempt}"


_OVERHEAD_BYTES = 600  # of a job besides its payload, about


class Known(msgspec.Struct, frozen=True, gc=False):
    """A child of this run, for comparison with another one that has the same id."""

    job_type: str
    payload: str  # its digest: ten thousand payloads are not kept twice


class Family:
    """The children of a run: stored before it, to be stored with its settlement, or staged for it."""

    def __init__(self, parent_id: str) -> None:
        self._parent_id = parent_id
        self.stored: dict[str, JobRecord] = {}  # as they were when the run began; not more than are loaded
        self.at_once: dict[str, JobRecord] = {}  # stored by this run, before its settlement
        self.known: dict[str, Known] = {}
        # Every child that this run has submitted, in that order, stored before or not; if by a key, with a digest.
        self.named: dict[str, str] = {}
        self.waits = 0  # calls of wait_for_children() by this run
        self.pending: list[NewJob] = []
        self.pending_bytes = 0
        self.staging = asyncio.Lock()  # a handler may submit from many tasks at once
        self.parts = 0
        self.staged_jobs = 0
        self._alike: Counter[str] = Counter()

    def id_of(self, job_type: str, payload: str, key: str | None) -> str:
        """Return an id that the same child has in every run. Identical children of one run are told apart by counting
        them."""
        if key is not None:
            return ids.derived(self._parent_id, f"key|{key}")
        alike = f"{job_type}|{digest(payload)}"
        self._alike[alike] += 1
        return ids.derived(self._parent_id, f"job|{job_type}|{self._alike[alike] - 1}|{payload}")

    def add(self, job: NewJob) -> None:
        self.known[job.job_id] = Known(job.job_type, digest(job.payload))
        self.pending.append(job)
        self.pending_bytes += _size(job)

    @property
    def is_full(self) -> bool:
        """Whether the pending children fill a part, which can be staged."""
        return len(self.pending) >= CHILDREN_PART_MAX or self.pending_bytes >= STAGED_PART_BYTES_MAX

    def take(self) -> list[NewJob]:
        """Take the pending children, so that no other task stages them too."""
        jobs = self.pending
        self.keep([])
        return jobs

    def keep(self, jobs: list[NewJob]) -> None:
        self.pending, self.pending_bytes = jobs, sum(map(_size, jobs))

    def put_back(self, jobs: list[NewJob]) -> None:
        """Put children back in front of those that were added meanwhile: children come after their dependencies."""
        self.keep([*jobs, *self.pending])

    def staged(self, jobs: list[NewJob]) -> None:
        self.parts += 1
        self.staged_jobs += len(jobs)

    def said(self) -> Said:
        if self.parts:
            return Said(staged=Staged(self.parts, self.staged_jobs))
        return Said(children=tuple(self.pending)) if self.pending else Said()

    def unsay(self) -> None:
        """Discard the children that would have been stored with the settlement."""
        self.known.clear()
        self.named.clear()
        self._alike.clear()
        self.keep([])
        self.parts = self.staged_jobs = 0

    def __bool__(self) -> bool:
        """Whether the settlement stores any children."""
        return bool(self.pending or self.parts)


def digest(payload: str) -> str:
    return hashlib.sha256(payload.encode()).hexdigest()


def in_parts(jobs: list[NewJob]) -> list[list[NewJob]]:
    parts: list[list[NewJob]] = [[]]
    size = 0
    for job in jobs:
        if parts[-1] and (len(parts[-1]) >= CHILDREN_PART_MAX or size + _size(job) > STAGED_PART_BYTES_MAX):
            parts.append([])
            size = 0
        parts[-1].append(job)
        size += _size(job)
    return parts


def _size(job: NewJob) -> int:
    return len(job.payload) + 40 * len(job.depends_on) + _OVERHEAD_BYTES


PROGRESS_DIGITS = 6  # more are never shown, and some engines cannot store smaller values
_NOTHING: Said = {}


class Report:
    """What the holder of a claim reports about its attempt. Most runs report nothing, which costs only class
    defaults."""

    job: ClaimedJob
    token: str
    progress: float | None = None
    stage: str | None = None
    metrics: dict[str, float] | None = None
    log_location: str | None = None
    log_write: asyncio.Task[None] | None = None  # under way
    dirty = False
    effects: tuple[Effect, ...] = ()
    artifacts: dict[str, StoredFile] | None = None
    family: Family | None = None  # children
    output: OutputBuffer | None = None
    _logs: list[dict[str, str]] | None = None
    _log_text: list[str] | None = None

    def __init__(self, job: ClaimedJob, token: str) -> None:
        self.job = job
        self.token = token

    @property
    def hold(self) -> Hold:
        return Hold(self.job.job_id, self.job.attempt, self.token)

    # What the handler says

    def say_progress(self, fraction: float, stage: str | None) -> None:
        self.progress = round(min(1.0, max(REPORTED_ZERO, float(fraction))), PROGRESS_DIGITS)
        if stage is not None:
            self.stage = codec.clean(str(stage))[: limits.STAGE_LENGTH_MAX]
        self.dirty = True

    def say_effects(self, statements: list[Effect]) -> None:
        self.effects = (*self.effects, *statements)

    def say_artifact(self, stored: StoredFile) -> None:
        if self.artifacts is None:
            before = msgspec.json.decode(self.job.artifacts, type=list[StoredFile]) if self.job.artifacts else []
            self.artifacts = {each.name: each for each in before}
        self.artifacts[stored.name] = stored
        self.dirty = True

    def say_metric(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            self.say_log(None, "WARNING", f"metric {name} is {value}, which cannot be stored")
            return
        metrics = self.metrics if self.metrics is not None else {}
        if name in metrics or len(metrics) < limits.METRICS_MAX:
            metrics[codec.clean(str(name))[: limits.NAME_LENGTH_MAX]] = value
        self.metrics = metrics
        self.dirty = True

    def say_log(self, created: float | None, level: str, message: str, item: int | None = None) -> None:
        moment = datetime.now(UTC) if created is None else datetime.fromtimestamp(created, UTC)
        at = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        text = codec.clean(message, limit=limits.LOG_FILE_BYTES_MAX)
        if self._logs is None or self._log_text is None:
            self._logs = msgspec.json.decode(self.job.logs) if self.job.logs else []
            self._log_text = []
        self._logs.append({"timestamp": at, "level": level, "message": text[: limits.LOG_MESSAGE_MAX]})
        del self._logs[: -limits.LOG_ENTRIES_MAX]
        self._log_text.append(f"{at} {level} [{self.job.attempt}] {text}\n")
        self.dirty = True

    # What is written of it

    def note(self) -> Note:
        self.dirty = False
        return Note(
            self.hold,
            progress=self.progress,
            stage=self.stage,
            logs=self.logs_json(),
            log_location=self.log_location,
            metrics=self.metrics_json(),
            artifacts=self.artifacts_json(),
        )

    def said(self) -> Said:
        if (
            self._logs is None
            and self.metrics is None
            and self.artifacts is None
            and self.family is None
            and not self.effects
        ):
            return _NOTHING
        said = Said(
            logs=self.logs_json(),
            log_location=self.log_location,
            metrics=self.metrics_json(),
            artifacts=self.artifacts_json(),
            effects=self.effects,
        )
        if self.family is not None:
            said.update(self.family.said())
        return said

    def logs_json(self) -> str | None:
        return None if self._logs is None else msgspec.json.encode(self._logs).decode()

    def metrics_json(self) -> str | None:
        return None if self.metrics is None else msgspec.json.encode(self.metrics).decode()

    def artifacts_json(self) -> str | None:
        return None if self.artifacts is None else msgspec.json.encode(list(self.artifacts.values())).decode()

    def take_log_text(self) -> str:
        if not self._log_text:
            return ""
        text = "".join(self._log_text)
        self._log_text.clear()
        return text


class Run(Execution, Report):
    """Written by the event loop and, for progress and logs, by the handler's thread.

    Most runs never log, report or stop, so what that needs is a class default and not set for every job."""

    lost = False
    settling = False
    row_parts: dict[str, int] | None = None  # how many batches of rows of each result table
    waits: dict[tuple[StepKind, str], int] | None = None  # how often it has come to a sleep or an event of this name
    rows_refused: Exception | None = None  # a part of which not all is stored, and which must not be published

    def __init__(self, job: ClaimedJob, handler: Handler, token: str, taken_at: float) -> None:
        self.job = job
        self.handler = handler
        self.token = token
        self.taken_at = taken_at  # on the event loop's clock: when it was claimed, and once it runs, when it began
        self.timeout_micros = job.timeout_micros

    @property
    def has_effects(self) -> bool:
        """Whether its completion stores more than a result."""
        return bool(self.effects or self.artifacts or self.family or self.row_parts or self.output)

    def unsay_effects(self) -> None:
        """Discard everything that the completion would have stored besides the result, because the call has failed."""
        self.effects = ()
        if self.family is not None:
            self.family.unsay()

    def unsay(self) -> None:
        """Discard what could not be stored."""
        self._logs = self.metrics = self.artifacts = None
        self.unsay_effects()

    @property
    def is_over(self) -> bool:
        return self.settling or self.lost

    @property
    def jobs(self) -> Sequence[Named]:
        return (self.job,)

    @property
    def execution(self) -> Execution:
        """What runs this job: the run itself, or the call that it shares."""
        return self

    def __repr__(self) -> str:
        return f"<Run {self.job.job_type} {self.job.job_id} attempt {self.job.attempt}>"


class Item(Run):
    """A run that shares a call with others. Stopping it discards its answer, and the call continues for the rest."""

    call: Call | None = None
    payload: Any = None  # decoded, once it is known that it can be
    kept_bytes = 0

    def __init__(self, job: ClaimedJob, handler: Handler, token: str, taken_at: float) -> None:
        super().__init__(job, handler, token, taken_at)
        self.kept_rows: list[RowBatch] = []  # until the call has answered

    def unsay_effects(self) -> None:
        super().unsay_effects()
        self.kept_rows, self.kept_bytes, self.row_parts, self.rows_refused = [], 0, None, None
        if self.output is not None:
            self.output.begin_again()

    def stop(self, reason: str) -> None:
        if self.stop_reason is None:
            self.stop_reason = reason
        if self.call is not None and not self.call.ended and all(each.stop_reason for each in self.call.items):
            self.call.stop(reason)

    @property
    def is_stopped(self) -> bool:
        return self.stop_reason is not None or (self.call is not None and self.call.is_stopped)

    @property
    def execution(self) -> Execution:
        return self if self.call is None or self.call.ended else self.call


class Call(Execution):
    """One call of a batch handler. Its timeout is the shortest among its jobs."""

    def __init__(self, items: Sequence[Item], copies: Sequence[Item]) -> None:
        self.items = (*items, *copies)
        self.firsts = tuple(items)
        self.handler = cast(BatchHandler, items[0].handler)
        self.task = items[0].task
        self.timeout_micros = min(each.timeout_micros for each in self.items)
        for each in self.items:
            each.call = self

    @property
    def is_over(self) -> bool:
        return self.ended or all(each.is_over for each in self.items)

    @property
    def jobs(self) -> Sequence[Named]:
        return [each.job for each in self.items]

    def say_log(self, created: float | None, level: str, message: str, item: int | None = None) -> None:
        """Log to the job that a line is about, or to all of them if it is about none."""
        for each in self.items if item is None else self.firsts[item : item + 1]:
            each.say_log(created, level, message)

    def __repr__(self) -> str:
        return f"<Call of {self.handler.name} for {len(self.items)}>"


class Runs:
    """The runs of one worker: a table that the worker's other objects share. It knows none of them."""

    def __init__(self, live: dict[str, Run]) -> None:
        self.held: dict[str, Run] = {}  # every claim that is ours, until it is settled
        self.running: dict[str, Run] = {}  # started, by job id
        self.calls: set[Call] = set()  # of batch handlers: each is stopped as a whole
        self.stuck: set[Run] = set()  # settled or lost, but the handler does not let go of its slot
        self.suspects: set[Run] = set()  # those of `held` whose last worker was lost, and some that were: see Slots
        self.left: asyncio.Event | None = None  # set, if there is one, when a claim is not held any more
        self.stopping = False  # the worker is
        self._live = live  # what runs, of all workers of the app, which reads live progress from it

    def start(self, run: Run) -> None:
        self.running[run.job.job_id] = self._live[run.job.job_id] = run

    def forget(self, run: Run) -> None:
        """Remove a run that is settled or lost. A stuck one still occupies its slot, and stays among the running."""
        job_id = run.job.job_id
        if self.held.get(job_id) is run:
            del self.held[job_id]
        if run not in self.stuck:
            self.forget_running(run)
        if self.left is not None:
            self.left.set()

    def forget_running(self, run: Run) -> None:
        job_id = run.job.job_id
        if self.running.get(job_id) is run:
            del self.running[job_id]
        if self._live.get(job_id) is run:
            del self._live[job_id]

    def executions(self) -> list[Execution]:
        """Return everything that can be stopped: jobs that run by themselves, and calls of batch handlers."""
        return [*(run for run in self.running.values() if not isinstance(run, Item)), *self.calls]

    def settling(self) -> set[str]:
        """Return the ids of jobs that have ended here, but perhaps not yet in the store."""
        return {run.job.job_id for run in self.held.values() if run.settling}

"""Runs an exported job again, on any machine, without its queue: `await replay(app, "job.zip")`.

    the file ─▶ a throwaway SQLite queue: the job, pending, and what has ended of its tree ─▶ one attempt ─▶ a report

The attempt has the number, the payload and the recorded steps of the last one. It runs with the handler of `app`, which
stays closed: code that reaches for its queue is refused, and nothing leaves the throwaway queue. What the handler does
elsewhere, it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from backstay import codec
from backstay.app import Backstay
from backstay.clock import Instant
from backstay.core.dumps import Adopted, EdgeDump, JobDump, bare
from backstay.core.export_file import Manifest, Reader, place
from backstay.core.output import START, StoredPart
from backstay.core.port import Store
from backstay.core.records import (
    ClaimedJob,
    ClaimRequest,
    ErrorEntry,
    HistoryEvent,
    Hold,
    Inserted,
    JobRecord,
    NewJob,
    Transition,
    Verdict,
)
from backstay.core.states import TERMINAL, Event, Status
from backstay.core.waits import Step, StepKind
from backstay.errors import ConfigurationError, ExportFailed
from backstay.files.local import Files
from backstay.limits import OUTPUT_PARTS_READ_MAX
from backstay.ops.job_export import files_of
from backstay.registration import BoundHandler
from backstay.sync import Backstay as BlockingBackstay

VALUE_SHOWN = 200  # characters of a value in a divergence


class ReplayReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a replay ended. `diverged` says in words how it differs from what was recorded; empty: in nothing."""

    job_id: str
    job_type: str
    attempt: int
    recorded: str  # how the job stood when it was exported, in words
    outcome: str  # of the replay: completed, failed, snoozed …
    result: Any = None
    error: ErrorEntry | None = None
    reason: str | None = None
    steps_used: tuple[str, ...] = ()
    steps_new: tuple[str, ...] = ()  # that the handler ran, because no answer was recorded
    steps_unused: tuple[str, ...] = ()
    submitted: tuple[str, ...] = ()  # types of the children that it would have stored
    output: int = 0  # entries that it streamed
    log: str = ""
    diverged: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # of the export

    @property
    def completed(self) -> bool:
        return self.outcome == "completed"


async def replay(app: Backstay | BlockingBackstay, path: str | Path) -> ReplayReport:
    """Run an exported job again with the handler of an app, which must not be open. Raises ExportFailed if the file
    cannot be replayed here, and says why."""
    inner = app.inner if isinstance(app, BlockingBackstay) else app
    if inner.is_open:
        raise ExportFailed(
            "the app is open, and a replay may not reach its queue: close it, or replay in a process apart"
        )
    with tempfile.TemporaryDirectory(prefix="backstay-replay-", ignore_cleanup_errors=True) as folder:
        reader = await asyncio.to_thread(Reader(Path(path)).__enter__)
        try:
            exported = await asyncio.to_thread(_Exported, reader)
            handler = _handler_for(inner, exported)
            replica = _replica(inner, Path(folder))
            async with replica:
                return await _Replay(replica, handler, exported).run()
        finally:
            reader.__exit__()


class _Exported:
    """What a file says of the job and its relatives."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.manifest: Manifest = reader.manifest
        self.job_id = self.manifest.job_id
        self.records: dict[str, JobRecord] = {}
        for job_id in self.manifest.jobs:
            record = reader.document(place(job_id, "record.json"), JobRecord)
            if record.job_id != job_id:
                raise ExportFailed(f"the record of job {job_id} is that of another one: the file was changed")
            self.records[job_id] = record
        if self.job_id not in self.records:
            raise ExportFailed("the file does not have the job that it is about")
        self.record = self.records[self.job_id]
        self.steps = reader.document(place(self.job_id, "steps.json"), list[Step])
        self.output = reader.document(place(self.job_id, "output.json"), list[StoredPart])


def _handler_for(app: Backstay, exported: _Exported) -> BoundHandler:
    record = exported.record
    handler = app.handlers.get(record.job_type)
    if handler is None:
        known = ", ".join(sorted(app.handlers)) or "none"
        raise ExportFailed(
            f"this app has no handler for {record.job_type!r} (it has {known}): replay with the app that has its code"
        )
    if record.payload_version > handler.version:
        raise ExportFailed(
            f"the payload of {record.job_type} has version {record.payload_version}, and the handler here reads up to"
            f" {handler.version}: replay with newer code"
        )
    if exported.manifest.masked:
        raise ExportFailed(
            "sensitive fields were masked when this was exported, so the handler would run with dots in their place:"
            ' export it again with "--sensitive"'
        )
    handler.decode(record.payload, record.payload_version)  # a payload that does not fit is said before anything runs
    return handler


def _replica(app: Backstay, folder: Path) -> Backstay:
    """Return an app with the same handlers, lifespan and middleware, on a throwaway queue."""
    replica = copy.copy(app)
    replica._forget()
    replica.url = f"sqlite:///{folder / 'jobs.db'}"
    replica._artifacts = (folder / "files").as_uri()
    replica._known_types, replica._sync, replica._purge_on_start, replica.observers = {}, None, False, None
    return replica


class _Replay:
    def __init__(self, app: Backstay, handler: BoundHandler, exported: _Exported) -> None:
        self._app = app
        self._handler = handler
        self._exported = exported

    async def run(self) -> ReplayReport:
        app, record = self._app, self._exported.record
        await self._fill()
        view = copy.copy(app)
        front = _Front(app.store, record.job_id, self._exported.steps)
        view._store = cast(Store, front)
        worker = view.worker(concurrency=1, job_types=[record.job_type], queues=[record.queue], grace=0.0)
        worker.call_batches_at_once()
        async with worker:
            stopped = asyncio.get_running_loop().create_task(worker.join())
            stopped.add_done_callback(lambda _: front.ended.done() or front.ended.cancel())
            with contextlib.suppress(asyncio.CancelledError):
                await front.ended
            stopped.cancel()
        if front.ended.cancelled():
            raise ExportFailed(f"the worker of the replay stopped by itself: {worker.failure or 'for no known reason'}")
        return await self._report(front, front.ended.result())

    async def _fill(self) -> None:
        """Store the job as pending, and what has ended of its tree."""
        exported, store = self._exported, self._app.store
        ended = [each for each in exported.records.values() if each.status in TERMINAL and each is not exported.record]
        here = {each.job_id for each in ended}
        adopted = [Adopted(_as_it_was(await self._with_files(each), here)) for each in ended]
        job = await self._with_files(exported.record)
        children = sum(each.parent_job_id == job.job_id for each in ended)
        adopted.append(Adopted(_pending(job, here, children)))
        verdicts = await store.adopt(adopted, self._app.clock.now())
        if any(verdict is not Verdict.APPLIED for verdict in verdicts):
            raise ExportFailed("the jobs of the file could not be stored in the throwaway queue: it was changed")

    async def _with_files(self, record: JobRecord) -> JobRecord:
        """Return a record that names its files where they are here."""
        reader, files = self._exported.reader, self._app.files
        if files is None:
            raise ConfigurationError("the throwaway queue has no place for files")
        result = record.result_artifact
        path = place(record.job_id, "result.json")
        if result is not None:
            result = await self._written(files, record, ".result.json", path) if reader.has(path) else None
        kept = []
        for number, file in enumerate(files_of(record)):
            path = place(record.job_id, f"files/{number}")
            if reader.has(path):
                stored = await asyncio.to_thread(
                    files.write, record.job_id, max(1, record.attempt), f"replayed-{number}", reader.stream(path)
                )
                kept.append(msgspec.structs.replace(stored, name=file.name))
        artifacts = msgspec.json.encode(kept).decode() if kept else None
        return msgspec.structs.replace(record, artifacts=artifacts, result_artifact=result, log_location=None)

    async def _written(self, files: Files, record: JobRecord, name: str, path: str) -> str:
        content = self._exported.reader.stream(path)
        stored = await asyncio.to_thread(files.write, record.job_id, max(1, record.attempt), name, content)
        return msgspec.json.encode(stored).decode()

    # How it ended

    async def _report(self, front: _Front, ended: Transition) -> ReplayReport:
        exported, record = self._exported, self._exported.record
        output = await self._output()
        log = await self._app.log_bytes(record.job_id)
        outcome = _outcome(ended)
        result = None
        if ended.target is Status.COMPLETED:
            text = (await self._app.get(record.job_id)).result_text()
            result = None if text is None else codec.decode(text)
        recorded_steps = [each.name for each in exported.steps if each.kind is StepKind.STEP]
        unused = tuple(name for name in recorded_steps if name not in front.used)
        report = ReplayReport(
            job_id=record.job_id,
            job_type=record.job_type,
            attempt=ended.attempt,
            recorded=_recorded(record),
            outcome=outcome,
            result=result,
            error=ended.error,
            reason=ended.reason,
            steps_used=tuple(front.used),
            steps_new=tuple(front.new),
            steps_unused=unused,
            submitted=tuple(job.job_type for job in front.submitted),
            output=len(output),
            log="" if log is None else log.decode("utf-8", "replace"),
            left_out=exported.manifest.left_out,
        )
        return msgspec.structs.replace(report, diverged=tuple(self._divergences(report, front, output)))

    async def _output(self) -> list[bytes]:
        found: list[bytes] = []
        after = START
        while parts := await self._app.store.output(self._exported.job_id, after, OUTPUT_PARTS_READ_MAX):
            found += [bytes(entry) for part in parts for entry in part.entries]
            after = parts[-1].end
        return found

    def _divergences(self, report: ReplayReport, front: _Front, output: Sequence[bytes]) -> list[str]:
        exported, record = self._exported, self._exported.record
        found: list[str] = []
        if record.status in TERMINAL:
            found += _of_outcome(record, report)
        if report.steps_unused:
            found.append(f"it did not ask for the recorded steps {', '.join(report.steps_unused)}")
        if report.steps_new and record.status in TERMINAL:
            found.append(f"it ran steps that were not recorded: {', '.join(report.steps_new)}")
        before = [bytes(entry) for part in exported.output for entry in part.entries]
        if exported.output and exported.output[-1].attempt == record.attempt and before != list(output):
            place = next((n for n, pair in enumerate(zip(before, output, strict=False), 1) if pair[0] != pair[1]), None)
            where = f"from entry {place} on" if place is not None else f"{len(output):,} entries, not {len(before):,}"
            found.append(f"its output differs: {where}")
        children = {each.job_id for each in exported.records.values() if each.parent_job_id == record.job_id}
        for job in front.submitted:
            if job.job_id not in children:
                found.append(f"it submitted a child that was not there: {job.job_type} {job.job_id}")
        active = [each for each in exported.records.values() if each.status not in TERMINAL and each is not record]
        if active:
            found.append(f"{len(active):,} jobs of its tree had not ended, and are not in the replay")
        return found


def _of_outcome(record: JobRecord, report: ReplayReport) -> list[str]:
    now = report.outcome if report.error is None else f"failed: {report.error.type}: {report.error.message}"
    before = _recorded(record)
    if record.status is Status.COMPLETED and report.completed:
        recorded = None if record.result is None else codec.decode(record.result)
        if record.result_artifact is None and recorded != report.result:
            return [f"its result is {str(report.result)[:VALUE_SHOWN]}, not {str(recorded)[:VALUE_SHOWN]}"]
        return []
    return [] if now == before else [f"it {now}; recorded was: {before}"]


def _recorded(record: JobRecord) -> str:
    if record.status is Status.FAILED and record.errors:
        last = record.errors[-1]
        return f"failed: {last.type}: {last.message}"
    return record.status.value


def _outcome(ended: Transition) -> str:
    match ended.event:
        case Event.COMPLETE:
            return "completed"
        case Event.RETRY | Event.EXHAUST | Event.DISCARD:
            return "failed"
        case Event.CANCEL:
            return "cancelled"
        case event:
            return event.value.replace("_", " ")


class _Front:
    """The store as the worker sees it: gives out the job once, with its recorded steps, and notes what happens."""

    def __init__(self, store: Store, job_id: str, steps: Sequence[Step]) -> None:
        self._store = store
        self._job_id = job_id
        self._steps = steps
        self._names = {step.name for step in steps}
        self._claimed = False
        self.used: dict[str, None] = {}
        self.new: dict[str, None] = {}
        self.submitted: list[NewJob] = []
        self.ended: asyncio.Future[Transition] = asyncio.get_running_loop().create_future()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim(self, request: ClaimRequest, now: Instant) -> list[ClaimedJob]:
        jobs = [] if self._claimed else await self._store.claim(request, now)
        for job in jobs:
            self._claimed = True
            hold = Hold(job.job_id, job.attempt, request.token)
            for step in self._steps:
                await self._store.record_step(hold, step.name, step.answer, now, step.kind)
        return jobs

    async def step(self, job_id: str, name: str, kind: StepKind = StepKind.STEP) -> str | None:
        answer = await self._store.step(job_id, name, kind)
        if answer is not None and kind is StepKind.STEP and name in self._names:
            self.used[name] = None
        return answer

    async def record_step(
        self, hold: Hold, name: str, answer: str, now: Instant, kind: StepKind = StepKind.STEP
    ) -> Verdict:
        if kind is StepKind.STEP:
            self.new[name] = None
        return await self._store.record_step(hold, name, answer, now, kind)

    async def insert_children(self, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
        self.submitted += jobs
        return await self._store.insert_children(hold, jobs, now)

    async def stage(self, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
        self.submitted += jobs
        return await self._store.stage(hold, part, jobs, now)

    async def apply(self, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
        verdicts = await self._store.apply(transitions, now)
        for transition, verdict in zip(transitions, verdicts, strict=True):
            if transition.job_id == self._job_id and verdict is Verdict.APPLIED and not self.ended.done():
                self.submitted += transition.children
                self.ended.set_result(transition)
        return verdicts


def _as_it_was(record: JobRecord, here: set[str]) -> JobDump:
    edges = tuple(sorted(EdgeDump(each, True, False) for each in record.dependencies if each in here))
    plain = msgspec.structs.replace(bare(record), **_WITHOUT_LIMITS, open_children=0, awaits=None)
    return JobDump(record=plain, edges=edges)


# What would keep the job from running at once, or belongs to its queue.
_WITHOUT_LIMITS: dict[str, Any] = {
    "concurrency_key": None,
    "concurrency_limit": None,
    "fairness_key": None,
    "fairness_weight": 1,
    "rate_key": None,
    "dedup_key": None,
    "content_hash": None,
    "rows_of": None,
    "rows_attempt": None,
    "result_tables": (),
}


def _pending(record: JobRecord, here: set[str], children: int) -> JobDump:
    """Return the job as it was before its last attempt, with one attempt left."""
    before = max(0, record.attempt - 1)
    submitted = HistoryEvent(1, record.created_at, Event.SUBMIT, None, Status.PENDING, 0, record.created_by)
    plain = msgspec.structs.replace(
        bare(record),
        **_WITHOUT_LIMITS,
        status=Status.PENDING,
        attempt=before,
        version=1,
        history=(submitted,),
        failures=0,
        max_attempts=1,
        scheduled_for=record.created_at,
        updated_at=record.created_at,
        worker_id=None,
        worker_version=None,
        lease_expires_at=None,
        started_at=None,
        completed_at=None,
        progress=0.0,
        stage="",
        result=None,
        result_artifact=None,
        last_error=None,
        error_type=None,
        errors=(),
        lost_at=None,
        suspicion=0,
        logs=None,
        metrics=None,
        awaits=None,
        children=children,
        open_children=0,
        reused_from=None,
    )
    edges = tuple(sorted(EdgeDump(each, True, False) for each in record.dependencies if each in here))
    return JobDump(record=plain, edges=edges)

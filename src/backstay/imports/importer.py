"""The import of a queue: what would become of it, then storing it, then comparing both sides.

Each step reads the source again. Jobs that wait for others are submitted after all others were stored: the submit looks
at how those stand at that moment, whether they were imported now or earlier, and whatever has run since.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import StrEnum

import msgspec

from backstay import failpoints
from backstay.app import Backstay
from backstay.core import dumps
from backstay.core.checks import count
from backstay.core.dumps import Adopted
from backstay.core.job_fields import COMPUTED_FIELDS
from backstay.core.port import Store
from backstay.core.records import JobRecord, JobType, Verdict
from backstay.core.states import ACTIVE, Status
from backstay.errors import ImportFailed, StoreError
from backstay.files.local import Files
from backstay.handlers import Handler
from backstay.imports.conversion import RESULT_FILE, Conversion
from backstay.imports.source import Row, Source, Unmappable, Unmapped, Work
from backstay.limits import IMPORT_PAGE
from backstay.ops.audit import Actor
from backstay.ops.retention import Retention
from backstay.transfer import patient

NAMED_MAX = 5  # ids given as examples
_COMPUTED = {
    each.name: each.default for each in msgspec.structs.fields(JobRecord) if each.name in (*COMPUTED_FIELDS, "parked")
}
_USUAL_KEEP = Retention().keep()


class Part(StrEnum):
    """Which jobs of a source to import."""

    ALL = "all"
    ACTIVE = "active"
    ENDED = "ended"

    def has(self, status: Status) -> bool:
        return self is Part.ALL or (status in ACTIVE) == (self is Part.ACTIVE)


class Line(msgspec.Struct, frozen=True, order=True):
    """Jobs of the source that are treated alike."""

    job_type: str
    state: str  # in the source
    becomes: str  # a state here
    queue: str
    note: str
    count: int = 0


class Refusal(msgspec.Struct, frozen=True):
    """Rows that cannot be imported, for the same reason."""

    state: str
    reason: str
    count: int
    examples: tuple[str, ...]  # ids of the source


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What an import does."""

    source: str
    lines: tuple[Line, ...]
    refused: tuple[Refusal, ...]
    notes: tuple[str, ...] = ()

    @property
    def jobs(self) -> int:
        return sum(line.count for line in self.lines)

    @property
    def unmapped(self) -> int:
        return sum(refusal.count for refusal in self.refused)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What an import did."""

    plan: Plan
    imported: int  # by this run
    here_before: int
    compared: int  # jobs that are equal on both sides
    changed: int  # jobs that differ, because they have changed since: here, or in the source
    changed_examples: tuple[str, ...] = ()
    # Jobs whose dedup key belongs to another job here, or that wait for a job which is not here.
    not_imported: int = 0
    not_imported_examples: tuple[str, ...] = ()
    seconds: float = 0.0


class Difference(msgspec.Struct, frozen=True):
    """A job that is not the same in the source and here."""

    source_id: str
    job_id: str
    job_type: str
    there: str  # its state in the source
    here: str | None  # its state here; None if it is not here


class Progress(msgspec.Struct, frozen=True):
    step: str  # reading, importing, comparing
    done: int
    total: int


Show = Callable[[Progress], None]


class Importer:
    """Imports a source into the queue of an open app. `queue` is where all jobs go; by default each goes where its type
    says. `renamed`: the new name of a job type, by its old one. `handlers`: those that the app would announce, if it is
    open without them."""

    def __init__(
        self,
        app: Backstay,
        name: str,
        source: Source,
        *,
        part: Part = Part.ALL,
        queue: str | None = None,
        renamed: Mapping[str, str] | None = None,
        handlers: Mapping[str, Handler] | None = None,
        show: Show = lambda _: None,
    ) -> None:
        self._app = app
        self._name = name
        self._source = source
        self._part = part
        self._queue = queue
        self._renamed = dict(renamed or {})
        self._handlers = dict(handlers or {})
        self._show = show
        self._unusable: set[str] = set()  # jobs that cannot be imported, if others may wait for them

    async def plan(self) -> Plan:
        """Read the whole source and say what would become of it. Changes nothing."""
        conversion = await self._conversion()
        await self._find_unusable(conversion)
        sketch = _Sketch()
        async for rows in self._pages("reading", conversion):
            for row in rows:
                sketch.add(row, conversion, self._app.files, self._part)
        return self._planned(sketch, conversion)

    async def differences(self) -> list[Difference]:
        """Read both sides and return the jobs that are not the same on both. Changes nothing."""
        conversion = await self._conversion()
        await self._find_unusable(conversion)
        comparison = _Comparison(self._app.store, self._app.files, conversion, self._part)
        found: list[Difference] = []
        async for rows in self._pages("comparing", conversion):
            found += [each async for each in comparison.differences(rows)]
        return found

    async def run(self, by: Actor) -> Report:
        """Import what is not here yet, and compare."""
        started = self._app.clock.monotonic()
        async with self._app.audited("import", self._source.location, by=by) as entry:
            conversion = await self._conversion()
            await self._find_unusable(conversion)
            writer = _Writer(self._app, conversion, self._part)
            async for rows in self._pages("importing", conversion):
                await writer.write(rows)
                failpoints.hit("import.page")
            await writer.submit_waiting()
            comparison = _Comparison(self._app.store, self._app.files, conversion, self._part)
            async for rows in self._pages("comparing", conversion):
                await comparison.compare(rows, writer.not_stored)
            report = Report(
                plan=self._planned(comparison.sketch, conversion),
                imported=writer.imported,
                here_before=comparison.compared + comparison.changed - writer.imported,
                compared=comparison.compared,
                changed=comparison.changed,
                changed_examples=tuple(comparison.examples),
                not_imported=len(writer.not_stored),
                not_imported_examples=tuple(sorted(writer.not_stored))[:NAMED_MAX],
                seconds=self._app.clock.monotonic() - started,
            )
            entry.after = {
                "source": self._name,
                "imported": report.imported,
                "here_before": report.here_before,
                "not_imported": report.plan.unmapped + report.not_imported,
                "changed": report.changed,
            }
            return report

    async def _conversion(self) -> Conversion:
        types: dict[str, JobType] = {each.job_type: each for each in await self._app.job_types()}
        now = self._app.clock.now()
        types |= {name: handler.describe(now) for name, handler in self._handlers.items()}
        return Conversion(self._name, types, self._renamed, self._queue)

    async def _pages(self, step: str, conversion: Conversion) -> AsyncIterator[list[Row]]:
        total = await self._source.count()
        done = 0
        seen: set[str] = set()
        self._show(Progress(step, 0, total))
        async for rows in self._source.pages():
            yield [_first(self._usable(row), conversion, seen) for row in rows]
            done += len(rows)
            self._show(Progress(step, done, max(done, total)))

    async def _find_unusable(self, conversion: Conversion) -> None:
        """Find the jobs that cannot be imported, and those that would wait for them forever."""
        if not self._source.has_dependencies:
            return
        mapped: set[str] = set()
        refused: set[str] = set()
        waits: dict[str, tuple[str, ...]] = {}
        async for rows in self._source.pages():
            for row in rows:
                if isinstance(row, Unmapped) or not conversion.takes(row, self._app.files):
                    refused.add(row.source_id)
                    continue
                mapped.add(row.source_id)
                if row.unfinished:
                    waits[row.source_id] = row.unfinished
        self._unusable = refused - mapped
        while stuck := {job for job, needs in waits.items() if not self._unusable.isdisjoint(needs)} - self._unusable:
            self._unusable |= stuck

    def _usable(self, row: Row) -> Row:
        if isinstance(row, Unmapped) or row.source_id not in self._unusable or not row.unfinished:
            return row
        return Unmapped(source_id=row.source_id, state=row.state, reason="it waits for a job that cannot be imported")

    def _planned(self, sketch: _Sketch, conversion: Conversion) -> Plan:
        return Plan(
            source=self._source.location,
            lines=tuple(sketch.lines()),
            refused=tuple(sketch.refused()),
            notes=(*self._source.notes(), *sketch.notes(conversion, self._app.clock.now())),
        )


def _first(row: Row, conversion: Conversion, seen: set[str]) -> Row:
    """Refuse a job if another one with its id came before it: which of them is meant, is not for an import to guess."""
    if isinstance(row, Unmapped):
        return row
    job_id = conversion.job_id(row.source_id)
    if job_id in seen:
        return Unmapped(source_id=row.source_id, state=row.state, reason="another job of the source has the same id")
    seen.add(job_id)
    return row


class _Sketch:
    """Counts the rows of a source by what they become."""

    def __init__(self) -> None:
        self._jobs: Counter[Line] = Counter()
        self._refused: dict[tuple[str, str], list[str]] = {}
        self._refusals: Counter[tuple[str, str]] = Counter()
        self._ended: Counter[tuple[str, Status, int]] = Counter()  # by type, state and day

    def add(self, row: Row, conversion: Conversion, files: Files | None, part: Part) -> Adopted | None:
        """Count a row; return the job that it becomes, if it is to be imported."""
        if isinstance(row, Unmapped):
            self._refuse(row.source_id, row.state, row.reason)
            return None
        try:
            adopted, _ = conversion.adopted(row, files)
        except Unmappable as error:
            self._refuse(row.source_id, row.state, str(error))
            return None
        record = adopted.job.record
        if not part.has(record.status):
            return None
        self._jobs[Line(record.job_type, row.state, record.status.value, record.queue, row.note)] += 1
        if record.completed_at is not None:
            self._ended[record.job_type, record.status, record.completed_at // _DAY] += 1
        return adopted

    def _refuse(self, source_id: str, state: str, reason: str) -> None:
        self._refusals[state, reason] += 1
        examples = self._refused.setdefault((state, reason), [])
        if len(examples) < NAMED_MAX:
            examples.append(source_id)

    def lines(self) -> list[Line]:
        return sorted(msgspec.structs.replace(line, count=jobs) for line, jobs in self._jobs.items())

    def refused(self) -> list[Refusal]:
        return [
            Refusal(state, reason, jobs, tuple(self._refused[state, reason]))
            for (state, reason), jobs in sorted(self._refusals.items())
        ]

    def notes(self, conversion: Conversion, now: int) -> list[str]:
        found = []
        unknown = sorted({line.job_type for line in self._jobs} - conversion.types.keys())
        if unknown:
            found.append(
                f"no application here has a handler for {', '.join(unknown)}: give yours with --app, so that queue,"
                " attempts and time limits are those of the handler; or rename a type with --rename OLD=NEW"
            )
        if old := sum(jobs for key, jobs in self._ended.items() if _is_over(conversion, *key, now)):
            found.append(
                f"older than the retention of their type: {count(old, 'ended job')}, which the first worker archives"
                " without payload and result; to keep them, set retention before a worker starts"
            )
        return found


_DAY = 24 * 3600 * 1_000_000


def _is_over(conversion: Conversion, job_type: str, status: Status, day: int, now: int) -> bool:
    announced = conversion.types.get(job_type)
    keep = announced.keep if announced is not None and announced.keep is not None else _USUAL_KEEP
    span = {
        Status.COMPLETED: keep.completed_micros,
        Status.FAILED: keep.failed_micros,
        Status.CANCELLED: keep.cancelled_micros,
    }[status]
    return span is not None and (day + 1) * _DAY < now - span


class _Writer:
    """Stores what is not here yet."""

    def __init__(self, app: Backstay, conversion: Conversion, part: Part) -> None:
        self._app = app
        self._store = patient(app.store, app.clock)
        self._conversion = conversion
        self._part = part
        self._waiting: dict[str, tuple[Adopted, Work]] = {}
        self.imported = 0
        # Ids of jobs whose dedup key belongs to another one, or that wait for a job which is not here.
        self.not_stored: set[str] = set()

    async def write(self, rows: Sequence[Row]) -> None:
        """Store the jobs of a page, and put off those that wait for others."""
        batch = []
        for row in rows:
            found = self._converted(row)
            if found is None:
                continue
            adopted, _, work = found
            if adopted.job.record.status is Status.WAITING:
                self._waiting[adopted.job_id] = adopted, work
            else:
                batch.append(found)
        for start in range(0, len(batch), IMPORT_PAGE):
            await self._write(batch[start : start + IMPORT_PAGE])

    def _converted(self, row: Row) -> tuple[Adopted, bytes | None, Work] | None:
        if isinstance(row, Unmapped):
            return None
        try:
            adopted, content = self._conversion.adopted(row, self._app.files)
        except Unmappable:
            return None
        return (adopted, content, row) if self._part.has(adopted.job.record.status) else None

    async def _write(self, batch: Sequence[tuple[Adopted, bytes | None, Work]]) -> None:
        written = await self._write_first([(adopted, content) for adopted, content, _ in batch if content is not None])
        verdicts = await self._store.adopt([adopted for adopted, _, _ in batch], self._app.clock.now())
        failpoints.hit("import.adopted")
        for (adopted, content, _), verdict in zip(batch, verdicts, strict=True):
            if verdict is Verdict.TAKEN:
                self.not_stored.add(adopted.job_id)
                continue
            self.imported += verdict is Verdict.APPLIED
            if content is not None and adopted.job_id not in written:
                await self._write_file(adopted, content)

    async def _write_first(self, large: Sequence[tuple[Adopted, bytes]]) -> set[str]:
        """Write the result files of jobs that are not here yet, so that no job names a file that does not exist. Return
        the jobs that need none any more: whose files are written, or which have gone another way since. PostgreSQL
        stores only files of jobs that exist: there the file follows its job."""
        done: set[str] = set()
        found = await self._store.get([adopted.job_id for adopted, _ in large]) if large else []
        for (adopted, content), record in zip(large, found, strict=True):
            if record is not None and record.result_artifact != adopted.job.record.result_artifact:
                done.add(adopted.job_id)
            elif record is None:
                with contextlib.suppress(StoreError):
                    await self._write_file(adopted, content)
                    done.add(adopted.job_id)
        return done

    async def _write_file(self, adopted: Adopted, content: bytes) -> None:
        files, record = self._app.files, adopted.job.record
        if files is not None:
            await asyncio.to_thread(files.write, record.job_id, max(1, record.attempt), RESULT_FILE, content)

    async def submit_waiting(self) -> None:
        """Submit the jobs that wait for others, each after those."""
        known = await self._store.statuses(list(self._waiting))
        left = [each for each, status in zip(self._waiting.values(), known, strict=True) if status is None]
        while left:
            later = [each for each in left if not await self._submit(*each)]
            if len(later) == len(left):
                break
            left = later
        self.not_stored.update(adopted.job_id for adopted, _ in left)

    async def _submit(self, adopted: Adopted, work: Work) -> bool:
        """Submit a job that waits for others, unless one of them is not here. A dependency that has ended in the source
        need not be imported."""
        edges = adopted.job.edges
        statuses = await self._store.statuses([edge.parent_id for edge in edges])
        here = [edge.parent_id for edge, status in zip(edges, statuses, strict=True) if status is not None]
        if any(not edge.met and edge.parent_id not in here for edge in edges):
            return False
        job = self._conversion.submit_of(adopted, work, here)
        [inserted] = await self._store.insert([job], adopted.job.record.created_at)
        if inserted.job_id != adopted.job_id:  # its dedup key belongs to another job
            self.not_stored.add(adopted.job_id)
        else:
            self.imported += 1
        return True


class _Comparison:
    """Reads both sides again. What is missing here is an error; what differs has changed since."""

    def __init__(self, store: Store, files: Files | None, conversion: Conversion, part: Part) -> None:
        self._store = store
        self._files = files
        self._conversion = conversion
        self._part = part
        self.sketch = _Sketch()
        self.compared = 0
        self.changed = 0
        self.examples: list[str] = []

    async def compare(self, rows: Sequence[Row], not_stored: set[str]) -> None:
        made = [self.sketch.add(row, self._conversion, self._files, self._part) for row in rows]
        wanted = [adopted for adopted in made if adopted is not None and adopted.job_id not in not_stored]
        for start in range(0, len(wanted), IMPORT_PAGE):
            await self._compare(wanted[start : start + IMPORT_PAGE])

    async def _compare(self, wanted: Sequence[Adopted]) -> None:
        found = await self._store.get([adopted.job_id for adopted in wanted])
        missing = [each.job_id for each, record in zip(wanted, found, strict=True) if record is None]
        if missing:
            raise ImportFailed(
                f"{len(missing):,} jobs of the source are not here, among them {', '.join(missing[:NAMED_MAX])}: if the"
                " source still takes jobs, stop that and run the same command again"
            )
        for adopted, record in zip(wanted, found, strict=True):
            if record is not None and (is_submitted(adopted) or is_same(self._store, adopted, record)):
                self.compared += 1
                continue
            self.changed += 1
            if len(self.examples) < NAMED_MAX:
                self.examples.append(adopted.job_id)

    async def differences(self, rows: Sequence[Row]) -> AsyncIterator[Difference]:
        made = [(row, self.sketch.add(row, self._conversion, self._files, self._part)) for row in rows]
        wanted = [(row, adopted) for row, adopted in made if adopted is not None]
        for start in range(0, len(wanted), IMPORT_PAGE):
            part = wanted[start : start + IMPORT_PAGE]
            found = await self._store.get([adopted.job_id for _, adopted in part])
            for (row, adopted), record in zip(part, found, strict=True):
                if record is None or not self._is_alike(adopted, record):
                    job = adopted.job.record
                    here = None if record is None else record.status.value
                    yield Difference(row.source_id, job.job_id, job.job_type, row.state, here)

    def _is_alike(self, adopted: Adopted, record: JobRecord) -> bool:
        if is_submitted(adopted):
            return record.status in _NOT_STARTED
        return is_same(self._store, adopted, record)


_NOT_STARTED = (Status.WAITING, Status.SCHEDULED, Status.PENDING)


def is_submitted(adopted: Adopted) -> bool:
    """Return whether a job is submitted, because it waits for others: then only its id can be compared."""
    return adopted.job.record.status is Status.WAITING


def is_same(store: Store, adopted: Adopted, stored: JobRecord) -> bool:
    """Return whether a stored job is what was adopted, as far as this engine can keep it."""
    kept = dumps.unpacked(dumps.JOBS, store.fit(dumps.JOBS, dumps.packed(adopted.job)), dumps.JobDump).record
    return compared(kept) == compared(stored)


def compared(record: JobRecord) -> JobRecord:
    """Return a record without what follows from other tables: jobs that wait for it, whether it is parked."""
    return msgspec.structs.replace(record, **_COMPUTED)

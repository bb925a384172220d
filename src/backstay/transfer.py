"""Transfer of a queue to another store (`backstay move`): freeze, copy, compare, open.

Each of the two stores records how far the transfer has come (`MoveState` in core/dumps.py), so that running the same
command again continues where the last run stopped, however it stopped:

1. TO is marked as the target of a transfer, and serves no jobs.
2. FROM is frozen: it accepts no jobs and gives none out.
3. Running jobs end or are rescued; from then on nothing in FROM changes.
4. Everything is copied, kind by kind and page by page; the position is stored with each page.
5. Both sides are read again and compared: the number of items of each kind, and the sum of their hashes. A sum, because
   two engines need not return the same order.
6. TO is opened, then FROM records for good where the queue went.

Jobs can run in FROM before step 3 and in TO after step 6, and nowhere in between. Files of jobs are copied along, to
the place where the other store keeps them.

A store that is away for a moment does not end the transfer, and neither does one that is away when it begins: each call
is repeated until it is back, as every verb of the port may be.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar, cast
from urllib.parse import unquote, urlsplit

import msgspec

from backstay import failpoints, settings
from backstay.clock import MICROS, Clock, SystemClock
from backstay.core import dumps
from backstay.core.access_keys import is_listed
from backstay.core.dumps import (
    FORMAT,
    FROM,
    INTO,
    SEALED,
    TAKEN_OVER,
    Exported,
    JobDump,
    MoveState,
    RowDump,
    next_run,
)
from backstay.core.port import Store
from backstay.core.records import JobRecord, Query
from backstay.core.result_tables import ColumnKind, ResultTable
from backstay.core.states import Status
from backstay.engines import open_files, open_url
from backstay.errors import ConfigurationError, MoveFailed, StoreBusy, StoreError, StoreUnavailable
from backstay.files.local import LOG_FILE, Files, StoredFile
from backstay.limits import (
    LEASE_SECONDS,
    LOG_FILE_BYTES_MAX,
    MOVE_GRACE_SECONDS,
    MOVE_OUTAGE_SECONDS,
    MOVE_PAGE,
    MOVE_PAGE_MIN,
)
from backstay.worker.maintenance import Sweeper

_file = msgspec.json.Decoder(StoredFile)
_stored_files = msgspec.json.Decoder(list[StoredFile])
_A_URI = b"://"  # occurs in every record that names a file


def may_name_files(item: bytes) -> bool:
    return _A_URI in item


def files_of(record: JobRecord) -> list[StoredFile]:
    """Return the artifacts of a job, and its result if that is a file; for a job that reused a result, the files of
    that job."""
    found = _stored_files.decode(record.artifacts) if record.artifacts else []
    return [*found, _file.decode(record.result_artifact)] if record.result_artifact else found


def place_of(uri: str) -> tuple[str, int, str]:
    """Return the job, attempt and name that a file was written under, at any location."""
    match unquote(urlsplit(uri).path).split("/")[-3:]:
        case [job_id, attempt, name] if attempt.isdigit():
            return job_id, int(attempt), name
        case _:
            raise MoveFailed(
                f"{uri} is not the location of a job file: nothing was opened; check the job that refers to it"
            )


def relocated(dump: JobDump, moved: Mapping[str, str], log_location: str | None) -> JobDump:
    """Return the job with the new locations of its files: `moved` maps each URI to the new one."""

    def there(file: StoredFile) -> StoredFile:
        return msgspec.structs.replace(file, uri=moved.get(file.uri, file.uri))

    record = dump.record
    changes: dict[str, str | None] = {"log_location": log_location}
    if record.artifacts:
        changes["artifacts"] = _text([there(each) for each in _stored_files.decode(record.artifacts)])
    if record.result_artifact:
        changes["result_artifact"] = _text(there(_file.decode(record.result_artifact)))
    return msgspec.structs.replace(dump, record=msgspec.structs.replace(record, **changes))


def placeless(item: bytes) -> bytes:
    """Return a job's item as it must be on both sides: files are compared by content, not by location."""
    if not may_name_files(item):
        return item
    dump = dumps.unpacked(dumps.JOBS, item, JobDump)
    moved = {file.uri: "" for file in files_of(dump.record)}
    return dumps.packed(relocated(dump, moved, "" if dump.record.log_location else None))


def _text(value: StoredFile | list[StoredFile]) -> str:
    return msgspec.json.encode(value).decode()


LOG_PIECE_BYTES = 1024 * 1024
MISSING_SHOWN = 10


class _Unreadable(Exception):
    """A file that its job names cannot be read at its location."""


class Carrier:
    """Copies the files of jobs. Its methods block, and run in a thread."""

    def __init__(self, source: Files, target: Files) -> None:
        self._source = source
        self._target = target
        self.files = 0
        self.file_bytes = 0
        self.missing: list[str] = []
        self.missing_count = 0

    def go_on_from(self, state: MoveState) -> None:
        """Restore the counts of an earlier run."""
        self.files, self.file_bytes = state.files, state.file_bytes
        self.missing, self.missing_count = list(state.missing), state.missing_count

    def counted(self, state: MoveState) -> MoveState:
        return msgspec.structs.replace(
            state,
            files=self.files,
            file_bytes=self.file_bytes,
            missing=tuple(self.missing),
            missing_count=self.missing_count,
        )

    @property
    def may_be_too_small(self) -> bool:
        return self._target.size_max < self._source.size_max

    def refuse_too_large(self, item: bytes) -> None:
        """Check sizes before anything is frozen: found later, a file that is too large would leave the queue frozen."""
        if not may_name_files(item):
            return
        dump = dumps.unpacked(dumps.JOBS, item, JobDump)
        for file in files_of(dump.record):
            if file.size > self._target.size_max:
                raise MoveFailed(
                    f"{file.name} of job {dump.record.job_id} has {file.size:,} bytes, and the new location takes"
                    f" files of up to {self._target.size_max:,}: give --to-artifacts s3://…; nothing was changed"
                )

    def relocated(self, items: Sequence[bytes]) -> list[bytes]:
        """Return the jobs with the new locations of their files."""
        return [self._relocated(item) if may_name_files(item) else item for item in items]

    def _relocated(self, item: bytes) -> bytes:
        dump = dumps.unpacked(dumps.JOBS, item, JobDump)
        record = dump.record
        moved = {file.uri: self._uri_there(file) for file in files_of(record)}
        log_location = record.log_location and self._target.uri(record.job_id, LOG_FILE)
        return dumps.packed(relocated(dump, moved, log_location))

    def _uri_there(self, file: StoredFile) -> str:
        job_id, attempt, name = place_of(file.uri)
        return self._target.uri(job_id, f"{attempt}/{name}")

    def carry(self, items: Sequence[bytes]) -> None:
        """Copy the files that these jobs name. The jobs were stored first, because every file belongs to one. Writing a
        file again is safe."""
        copied: set[str] = set()  # several jobs may share one result
        for item in items:
            if not may_name_files(item):
                continue
            record = dumps.unpacked(dumps.JOBS, item, JobDump).record
            for file in files_of(record):
                if file.uri not in copied:
                    copied.add(file.uri)
                    self._copy(file)
            if record.log_location is not None:
                self._copy_log(record.job_id)

    def _copy(self, file: StoredFile) -> None:
        job_id, attempt, name = place_of(file.uri)
        try:
            written = self._target.write(job_id, attempt, name, self._read(file))
        except _Unreadable:  # lost before the transfer: the others are transferred anyway
            self._miss(file.uri)
            return
        self.files += 1
        self.file_bytes += written.size

    def _read(self, file: StoredFile) -> Iterator[bytes]:
        try:
            yield from self._source.stream(file)
        except (StoreUnavailable, StoreBusy):
            raise
        except StoreError as error:
            raise _Unreadable from error

    def _copy_log(self, job_id: str) -> None:
        """Append the log of a job. Resumes after what an earlier try has written."""
        start = self._length_there(job_id)
        while piece := self._source.read_part(job_id, LOG_FILE, start, LOG_PIECE_BYTES):
            self._target.append(job_id, LOG_FILE, piece, LOG_FILE_BYTES_MAX)
            start += len(piece)
            self.file_bytes += len(piece)
        self.files += 1

    def _length_there(self, job_id: str) -> int:
        size = 0
        while piece := self._target.read_part(job_id, LOG_FILE, size, LOG_PIECE_BYTES):
            size += len(piece)
        return size

    def _miss(self, uri: str) -> None:
        self.missing_count += 1
        if len(self.missing) < MISSING_SHOWN:
            self.missing.append(uri)


class Progress(msgspec.Struct, frozen=True):
    """Progress of a transfer. `total` is None if it was not counted."""

    step: str  # opening, waiting, jobs, steps, …, verifying
    done: int = 0
    total: int | None = None
    reason: str = ""  # why it does not continue


class Report(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    target: str
    copied: dict[str, int]  # by kind, equal on both sides
    files: int = 0  # includes those that an interrupted earlier run copied
    file_bytes: int = 0
    missing: tuple[str, ...] = ()  # files that their jobs name and that cannot be read, up to a few …
    missing_count: int = 0  # … and how many in all
    shortened: int = 0  # items that the target had to shorten: long errors, reasons, logs
    seconds: float = 0.0  # duration of this run


SHOWN = 5  # items named in the error if the two sides differ
_MODULUS = 2**256


class Sum(msgspec.Struct):
    count: int = 0
    total: int = 0
    shortened: int = 0

    def add(self, digest: bytes) -> None:
        self.count += 1
        self.total = (self.total + int.from_bytes(digest)) % _MODULUS


async def pages(
    store: Store, kind: str, after: str | None = None
) -> AsyncIterator[tuple[tuple[bytes, ...], str | None]]:
    """Yield pages of a kind, each with the cursor of the next one."""
    while True:
        page = await store.export(kind, after, MOVE_PAGE)
        yield page.items, page.next
        if page.next is None:
            return
        after = page.next


async def verified(source: Store, target: Store, kind: str, read: Callable[[int], None]) -> Sum:
    """Return what both sides have of a kind; raise MoveFailed if they differ. `read` is called with the number read."""
    columns = {table.name: table for table in await source.result_tables()} if kind == dumps.ROWS else {}
    here, there = Sum(), Sum()
    async for items, _ in pages(source, kind):
        for item in items:
            kept = target.fit(kind, item)
            here.shortened += kept != item
            here.add(digest(kind, kept, columns))
        read(len(items))
    async for items, _ in pages(target, kind):
        for item in items:
            there.add(digest(kind, item, columns))
        read(len(items))
    if (here.count, here.total) != (there.count, there.total):
        raise MoveFailed(await _difference(source, target, kind, here.count, there.count, columns))
    return here


def digest(kind: str, item: bytes, tables: Mapping[str, ResultTable]) -> bytes:
    """Return the hash of an item as it must be on both sides."""
    if kind == dumps.JOBS:
        item = placeless(item)
    elif kind == dumps.ROWS:
        item = _row(item, tables)
    return hashlib.sha256(item).digest()


def _row(item: bytes, tables: Mapping[str, ResultTable]) -> bytes:
    """Normalise numbers: an engine may write 1.50 as 1.5, and has only one zero."""
    dump = dumps.unpacked(dumps.ROWS, item, RowDump)
    kinds = [column.kind for column in tables[dump.table].columns]
    values = tuple(_plain(kind, value) for kind, value in zip(kinds, dump.values, strict=True))
    return dumps.packed(msgspec.structs.replace(dump, values=values))


def _plain(kind: ColumnKind, value: Any) -> Any:
    if value is None:
        return None
    match kind:
        case ColumnKind.DECIMAL:
            number = Decimal(value)
            return str(number.normalize()) if number else "0"
        case ColumnKind.NUMBER:
            return float(value) + 0.0
        case _:
            return value


async def _difference(
    source: Store, target: Store, kind: str, here: int, there: int, tables: Mapping[str, ResultTable]
) -> str:
    """Describe a difference, with some of the items that only one side has. This is a second pass, made only if the
    sums differ."""
    left: dict[bytes, str] = {}
    async for items, _ in pages(source, kind):
        for item in items:
            left[digest(kind, target.fit(kind, item), tables)] = dumps.name_of(kind, item)
    added: list[str] = []
    async for items, _ in pages(target, kind):
        for item in items:
            if left.pop(digest(kind, item, tables), None) is None and len(added) < SHOWN:
                added.append(dumps.name_of(kind, item))
    names = dict.fromkeys([*list(left.values())[:SHOWN], *added])
    return (
        f"{kind} differ: {here:,} in {source.location}, {there:,} in {target.location}; including"
        f" {', '.join(names) or 'some duplicates'}. Nothing was opened, and nothing is lost: empty"
        f" {target.location} and transfer again, or resume {source.location} with --thaw"
    )


LOOK_SECONDS = 0.25  # between checks whether running jobs have ended
NAMED_MAX = 5
_COPIED = "verifying"  # `kind` of a target store once everything was copied
_MUST_BE_EMPTY = (dumps.JOBS, dumps.ARCHIVE, dumps.SCHEDULES, dumps.GUARDS, dumps.KEYS, dumps.AUDIT)

Show = Callable[[Progress], None]
T = TypeVar("T")


async def move(
    source_url: str,
    target_url: str,
    *,
    artifacts: str | None = None,
    to_artifacts: str | None = None,
    grace: float | None = None,
    clock: Clock | None = None,
    show: Show = lambda _: None,
) -> Report:
    """Transfer a queue from one store to another, or resume an interrupted transfer. `artifacts` is where the queue's
    files are, if not with the store, and `to_artifacts` where to put them; by default they stay where they are."""
    artifacts = settings.setting("artifacts", artifacts, str, "") or None
    stays = artifacts is not None and to_artifacts in (None, artifacts)
    clock = clock or SystemClock()
    waiting = _Waiting(clock, show)
    async with (
        _opened(source_url, waiting, must_exist=True) as source,
        _opened(target_url, waiting) as target,
    ):
        if source.location == target.location:
            raise ConfigurationError(f"{source.location} is where the queue already is: choose another location")
        with (
            _files(source_url, source, artifacts) as here,
            _files(target_url, target, to_artifacts or artifacts) as there,
        ):
            carrier = None if stays else Carrier(here, there)
            return await Mover(patient(source, clock), patient(target, clock), carrier, grace, clock, show).run()


async def thaw(source_url: str, target_url: str, *, force: bool = False) -> None:
    """Abandon a transfer: the queue resumes at its old location."""
    async with _opened(source_url, must_exist=True) as source:
        state = await source.moving()
        if state is None or state.role != FROM:
            raise MoveFailed(f"{source.location} is not being transferred: there is nothing to abandon")
        if (given := open_url(target_url).location) != state.other:
            raise MoveFailed(f"{source.location} is being transferred to {state.other}, not to {given}: give that URL")
        if not force and (state.done or not await _kept_from_opening(target_url, state)):
            raise MoveFailed(
                f"the queue was transferred to {state.other}, where its jobs run: if {source.location} resumed, they"
                " would run twice. Add --force only if nothing has run there"
            )
        await source.freeze(None)


async def _kept_from_opening(target_url: str, state: MoveState) -> bool:
    """Start a new run of the transfer in the target, so that an earlier run that is still alive cannot open it; return
    False if it is open already."""
    if not await open_url(target_url).exists():
        return True
    async with _opened(target_url) as target:
        into = await target.moving()
        if into is None or into.move_id != state.move_id:
            return True
        if into.done:
            return False
        await target.restore("", [], msgspec.structs.replace(into, run=next_run(into, state)))
        return True


class _Patient:
    """A store whose verbs wait for it to come back. A page that does not get through is tried again as a shorter one: a
    slow store that is away every few seconds would never take a long one."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._page = MOVE_PAGE
        self._kept: MoveState | None = None  # what the store has of the transfer's state

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not inspect.iscoroutinefunction(verb):
            return verb

        async def call(*arguments: Any, **options: Any) -> Any:
            return await self._tried(lambda: verb(*arguments, **options))

        return call

    async def export(self, kind: str, after: str | None, limit: int) -> Exported:
        # Also refused while an index lags behind what was written.
        passing = (StoreUnavailable, StoreBusy)
        return await self._tried(lambda: self._store.export(kind, after, min(limit, self._page)), passing)

    async def restore(self, kind: str, items: Sequence[bytes], state: MoveState) -> None:
        left = list(items)

        async def store_some() -> int:
            size = len(left) if self._kept is None else self._page
            # Only with the last of them is the transfer at the next page.
            await self._store.restore(kind, left[:size], state if size >= len(left) else self._kept or state)
            return size

        del left[: await self._tried(store_some)]
        while left:
            del left[: await self._tried(store_some)]
        self._kept = state

    async def _tried(
        self, verb: Callable[[], Awaitable[T]], passing: tuple[type[Exception], ...] = (StoreUnavailable,)
    ) -> T:
        until = self._clock.monotonic() + MOVE_OUTAGE_SECONDS
        while True:
            try:
                answer = await verb()
            except passing:
                if self._clock.monotonic() >= until:
                    raise
            else:
                self._page = min(MOVE_PAGE, 2 * self._page)
                return answer
            self._page = max(MOVE_PAGE_MIN, self._page // 2)
            await asyncio.sleep(LOOK_SECONDS)


def patient(store: Store, clock: Clock) -> Store:
    return cast(Store, _Patient(store, clock))


class Mover:
    def __init__(
        self, source: Store, target: Store, carrier: Carrier | None, grace: float | None, clock: Clock, show: Show
    ) -> None:
        self._source = source
        self._target = target
        self._carrier = carrier
        self._grace = grace
        self._clock = clock
        self._show = show
        self._leaving = MoveState(role=FROM, move_id="", other=target.location)
        self._coming = MoveState(role=INTO, move_id="", other=source.location)

    async def run(self) -> Report:
        started = self._clock.monotonic()
        await self._begin()
        if not self._coming.done:
            await self._drain()
            await self._copy()
        sums = await self._verify() if not self._coming.done else {}
        await self._open()
        carrier = self._carrier
        keys = [key for key in await self._target.keys() if is_listed(key)]  # dashboard sessions go along uncounted
        return Report(
            source=self._source.location,
            target=self._target.location,
            copied={kind: found[0] for kind, found in sums.items()} | ({dumps.KEYS: len(keys)} if sums else {}),
            shortened=sum(found[1] for found in sums.values()),
            files=carrier.files if carrier else 0,
            file_bytes=carrier.file_bytes if carrier else 0,
            missing=tuple(carrier.missing) if carrier else (),
            missing_count=carrier.missing_count if carrier else 0,
            seconds=self._clock.monotonic() - started,
        )

    # Begin or resume

    async def _begin(self) -> None:
        left, into = await self._source.moving(), await self._target.moving()
        self._refuse_others(left, into)
        if into is not None and into.role == INTO and left is not None and into.move_id == left.move_id:
            self._leaving, self._coming = left, into
            if self._carrier is not None:
                self._carrier.go_on_from(into)
            if not into.done:
                await self._take_over(next_run(left, into))
            return
        begun = into if into is not None and into.role == INTO and not into.done else None
        if begun is not None and (begun.kind, begun.other) != ("", self._source.location):
            raise MoveFailed(
                f"a transfer from {begun.other} into {self._target.location} was begun and abandoned: it holds part of"
                " that queue. Empty it, or choose another location"
            )
        await self._refuse_used()
        await self._refuse_too_large()
        move_id = secrets.token_hex(8) if begun is None else begun.move_id
        self._leaving = msgspec.structs.replace(self._leaving, move_id=move_id)
        self._coming = msgspec.structs.replace(self._coming, move_id=move_id)
        await self._take_over(next_run(begun, self._coming))
        failpoints.hit("move.marked")
        await self._declare_tables()

    async def _declare_tables(self) -> None:
        """Declare the result tables before the queue is frozen: the target may lack what they need."""
        async for items, _ in pages(self._source, dumps.TABLES):
            await self._target.restore(dumps.TABLES, items, self._coming)

    async def _take_over(self, run: int) -> None:
        """Become the current run: from here on, earlier runs that are still alive cannot write."""
        self._leaving = msgspec.structs.replace(self._leaving, run=run)
        self._coming = msgspec.structs.replace(self._coming, run=run)
        await self._target.restore("", [], self._coming)

    async def _refuse_if_taken_over(self) -> None:
        into = await self._target.moving()
        if into is None or into.done or (into.move_id, into.run) != (self._coming.move_id, self._coming.run):
            raise MoveFailed(TAKEN_OVER)

    def _refuse_others(self, left: MoveState | None, into: MoveState | None) -> None:
        here, there = self._source.location, self._target.location
        for state in (left, into):
            if state is not None and state.format != FORMAT:
                raise MoveFailed("another version of Backstay began this transfer: finish it with that version")
        if left is not None and left.role == INTO and not left.done:
            raise MoveFailed(f"a transfer into {here} has not finished: finish it first")
        if into is not None and into.role == FROM:
            raise MoveFailed(
                f"{there} was, or is being, transferred to {into.other} itself: choose that, or another location"
            )
        ours = left is None or left.role != FROM or (into is not None and into.move_id == left.move_id)
        if left is not None and not ours:
            raise MoveFailed(
                f"{here} {'was' if left.done else 'is'} already {'' if left.done else 'being '}transferred to"
                f" {left.other}: give that URL"
                + ("" if left.done else f', or abandon that with "{self._command(left.other)} --thaw"')
            )

    def _command(self, target: str) -> str:
        return shlex.join(("backstay", "move", self._source.location, target))

    async def _refuse_used(self) -> None:
        for kind in _MUST_BE_EMPTY:
            if (await self._target.export(kind, None, 1)).items:
                raise MoveFailed(
                    f"{self._target.location} already has {kind}: a queue can only be transferred into an empty one;"
                    " choose another location, for example another file, schema or table prefix"
                )

    async def _refuse_too_large(self) -> None:
        if self._carrier is None or not self._carrier.may_be_too_small:
            return
        async for items, _ in pages(self._source, dumps.JOBS):
            for item in items:
                self._carrier.refuse_too_large(item)

    # Freeze and drain

    async def _drain(self) -> None:
        """Freeze, then wait for running jobs, except those of dead workers."""
        await self._refuse_if_taken_over()
        if await self._source.moving() != self._leaving:
            await self._source.freeze(self._leaving)
        failpoints.hit("move.frozen")
        sweeper = Sweeper(
            self._source,
            self._clock,
            worker_id=f"move {self._leaving.move_id}",
            lease_seconds=LEASE_SECONDS,
            sweep_seconds=LOOK_SECONDS,
        )
        sealed = msgspec.structs.replace(self._leaving, kind=SEALED)
        deadline = self._clock.monotonic() + await self._patience()
        while left := await self._sealed(sealed):
            self._show(Progress("waiting", left))
            if self._clock.monotonic() > deadline:
                raise MoveFailed(await self._who_runs())
            await sweeper.sweep_once()
            await asyncio.sleep(LOOK_SECONDS)
        self._leaving = sealed
        failpoints.hit("move.drained")

    async def _sealed(self, state: MoveState) -> int:
        """Try to seal the source; return how many operations are still under way: 0 means sealed."""
        try:
            return await self._source.freeze(state)
        except StoreBusy:  # another session is in a long transaction
            return 1

    async def _patience(self) -> float:
        if self._grace is not None:
            return self._grace
        leases = [worker.lease_micros / MICROS for worker in await self._source.workers()]
        return MOVE_GRACE_SECONDS + max(leases, default=LEASE_SECONDS)

    async def _who_runs(self) -> str:
        page = await self._source.find(Query(status=Status.PROCESSING, limit=100))
        number = (await self._source.counts())[Status.PROCESSING]
        workers = list(dict.fromkeys(job.worker_id or "" for job in page.items))
        named = ", ".join(workers[:NAMED_MAX]) + (", …" if len(workers) > NAMED_MAX else "")
        jobs = "1 job is still running" if number == 1 else f"{number:,} jobs are still running"
        runs = f"{jobs} on {named}" if number else "other processes are still changing the queue"
        return (
            f"{runs}: stop their workers, or allow more time with --grace, and run the same command again."
            f" {self._source.location} accepts and runs no jobs until then, or until --thaw"
        )

    # Copy

    async def _copy(self) -> None:
        begin = self._coming.kind or dumps.KINDS[0]
        if begin == _COPIED:
            return
        for kind in dumps.KINDS[dumps.KINDS.index(begin) :]:
            await self._copy_kind(kind, self._coming.after if kind == begin else None)
        failpoints.hit("move.copied")

    async def _copy_kind(self, kind: str, after: str | None) -> None:
        """Copy one kind. Each page commits together with the cursor of the next one, unless files are copied in
        between."""
        total = sum((await self._source.counts()).values()) if kind == dumps.JOBS else None
        done = sum((await self._target.counts()).values()) if kind == dumps.JOBS and after else 0
        follows = dict(zip(dumps.KINDS, (*dumps.KINDS[1:], _COPIED), strict=True))[kind]
        async for items, place in pages(self._source, kind, after):
            here = msgspec.structs.replace(self._coming, kind=kind, after=after)
            after = place
            self._coming = msgspec.structs.replace(here, kind=follows if place is None else kind, after=place)
            if kind == dumps.JOBS and self._carrier is not None and any(map(may_name_files, items)):
                await self._target.restore(kind, self._carrier.relocated(items), here)
                failpoints.hit("move.files")
                await asyncio.to_thread(self._carrier.carry, items)
                self._coming = self._carrier.counted(self._coming)
                await self._target.restore("", [], self._coming)
            else:
                await self._target.restore(kind, items, self._coming)
            failpoints.hit("move.page")
            done += len(items)
            if items:
                self._show(Progress(kind, done, total))

    async def _verify(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        total = 2 * sum((await self._source.counts()).values())
        done = 0

        def read(number: int) -> None:
            nonlocal done
            done += number
            self._show(Progress("verifying", min(done, total), total))

        for kind in dumps.KINDS:
            try:
                sums = await verified(self._source, self._target, kind, read)
            except MoveFailed:
                await self._refuse_if_taken_over()  # then they may differ
                raise
            found[kind] = (sums.count, sums.shortened)
        failpoints.hit("move.verified")
        return found

    async def _open(self) -> None:
        """Open the target first: if the process is killed in between, jobs run there and not here."""
        if not self._coming.done:
            if await self._source.moving() != self._leaving:
                raise MoveFailed(TAKEN_OVER)
            await self._target.restore("", [], msgspec.structs.replace(self._coming, done=True))
            failpoints.hit("move.opened")
        if await self._source.freeze(msgspec.structs.replace(self._leaving, kind=SEALED, done=True)):
            raise MoveFailed(
                f"jobs are running in {self._source.location}, and the queue is open in {self._target.location}: stop"
                " the workers of one of them, and run the same command again"
            )


class _Waiting(msgspec.Struct, frozen=True):
    """How to wait for a store that cannot be opened."""

    clock: Clock
    show: Show

    async def open(self, url: str, must_exist: bool) -> Store:
        until = self.clock.monotonic() + MOVE_OUTAGE_SECONDS
        while True:
            try:
                return await _open(url, must_exist)
            except StoreUnavailable as error:
                if self.clock.monotonic() >= until:
                    raise
                self.show(Progress("opening", reason=str(error)))
            await asyncio.sleep(LOOK_SECONDS)


async def _open(url: str, must_exist: bool) -> Store:
    store = open_url(url)
    if must_exist and not await store.exists():
        raise ConfigurationError(f"no queue at {store.location}: there is nothing to transfer")
    await store.open()
    return store


@contextlib.asynccontextmanager
async def _opened(url: str, waiting: _Waiting | None = None, *, must_exist: bool = False) -> AsyncIterator[Store]:
    store = await (_open(url, must_exist) if waiting is None else waiting.open(url, must_exist))
    try:
        yield store
    finally:
        await asyncio.shield(store.close())


@contextlib.contextmanager
def _files(url: str, store: Store, artifacts: str | None) -> Iterator[Files]:
    files = open_files(url, store, artifacts)
    try:
        yield files
    finally:
        files.close()

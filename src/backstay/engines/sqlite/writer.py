"""Writes to the SQLite file: one thread, in which waiting verbs share a transaction. Also the disk reserve.

A thread that waits for its verb anyway runs it itself while the connection is free, which saves two switches between
threads; that is most of the time of a single submit.

No verb is answered before COMMIT has returned. A verb sees its transaction as a `Tx`: the connection, the signals to
send once it is committed, and the counters.

A small file next to the database reserves disk space: when a settlement meets a full disk, the file is removed and its
space used; until it can be restored, new jobs are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, TypeVarTuple

import apsw
import msgspec

from backstay import failpoints
from backstay.clock import Clock, Instant, SystemClock
from backstay.core.records import Kind, Signal
from backstay.core.states import NO_BUCKET, Counted
from backstay.engines.places import STORED
from backstay.engines.sql_rows import MINUTE, Counts, Noted
from backstay.engines.sqlite.connection import gate, load, translate
from backstay.errors import ForkedStore, NotOpen, StoreBusy, StoreError, StoreFull, StoreGone

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
COUNT = load("count")
ADD_TALLY = load("add_tally")
DROP_TALLY = load("drop_tally")
LAST_SEQ = load("last_seq")
LIMITED = load("limited_queues")
COUNT_SUBMITS = load("count_submits")
TALLY_SUBMITS = load("tally_submits")
SAVE_COUNTED = load("save_counted")
UNCOUNTED_MAX = 256  # a read adds them up


# New jobs: their positions in the order of arrival, and when they are counted as submitted. A single submit writes no
# counter, which would be one more page to sync. Jobs after `counted_through` are not in the counters yet, nor in the
# tally, and every read of these adds them from the view `uncounted`. They are counted once there are many, and before a
# job is deleted or the counters are summed or exported.


class Known(NamedTuple):
    """What an insert has to know. Only another process or a verb other than an insert can change it."""

    last: int  # the position of the job that arrived last
    counted: int  # the position up to which submits are in the counters
    limited: list[tuple[Any, ...]]  # queues with a limit


def look(connection: apsw.Connection) -> Known:
    last, counted = connection.execute(LAST_SEQ).fetchall()[0]
    return Known(int(str(last)), int(str(counted)), connection.execute(LIMITED).fetchall())


class Arrivals:
    """The new jobs of one transaction. No other process can take their positions in the meantime."""

    __slots__ = ("_counted", "_first", "_known", "_last", "_submitted", "_tx")

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        known = self._known = tx.known
        self._last = -1  # not read yet
        self._counted = 0
        if known is not None:
            self._last, self._counted, _ = known
        self._first: int | None = None  # from which on jobs are of this transaction, and not counted
        self._submitted: Counts = {}  # those

    def known(self, before: Known) -> Known:
        """Return what is known once these are committed."""
        return Known(self._last, self._counted, before.limited)

    def limited(self) -> list[tuple[Any, ...]]:
        """Return the queues that have a limit, each with it."""
        return self._tx.rows(LIMITED) if self._known is None else self._known.limited

    def take_seqs(self, jobs: int) -> int:
        """Return the first of as many positions in the order of arrival."""
        self._read()
        first = self._last + 1
        self._last += jobs
        if self._first is None:
            self._first = first
        return first

    def submitted(self, kind: Kind, now: Instant, jobs: int = 1) -> None:
        """Note that these are to be counted, each of them a job with a position of this transaction."""
        key = (now - now % MINUTE, kind, Counted.SUBMITTED, NO_BUCKET)
        sums = self._submitted.get(key)
        if sums is None:
            self._submitted[key] = [jobs, 0, 0]
        else:
            sums[0] += jobs

    def count_many(self) -> None:
        """Count all submits if they are many."""
        if self._first is not None and self._last - self._counted >= UNCOUNTED_MAX:
            self.count()

    def count(self) -> None:
        """Count all submits, also those of earlier transactions. Jobs with a position of this transaction that it did
        not submit are not counted, now or later."""
        self._read()
        if self._counted == self._last:
            return
        connection = self._tx.connection
        if self._first is None or self._first > self._counted + 1:
            before = (self._last + 1 if self._first is None else self._first,)
            connection.execute(COUNT_SUBMITS, before)
            connection.execute(TALLY_SUBMITS, before)
        for (at, kind, outcome, _), (jobs, _, _) in self._submitted.items():
            self._tx.count(kind, outcome, at, jobs)
            self._tx.tally(kind, STORED, jobs)
        self._submitted.clear()
        self._first, self._counted = None, self._last
        connection.execute(SAVE_COUNTED, (self._last,))

    def _read(self) -> None:
        if self._last < 0:
            last, counted = self._tx.connection.execute(LAST_SEQ).fetchall()[0]
            self._last, self._counted = int(str(last)), int(str(counted))


# A transaction


class Tx(Noted, eq=False):
    connection: apsw.Connection
    known: Known | None = None  # before it, of what an insert has to know
    room: dict[str, int] = msgspec.field(default_factory=dict)  # of limited queues, as far as this transaction knows
    _arrivals: Arrivals | None = None

    @property
    def arrivals(self) -> Arrivals:
        if self._arrivals is None:
            self._arrivals = Arrivals(self)
        return self._arrivals

    # apsw types a row as whatever SQLite can hold; our statements know what theirs hold.

    def rows(self, statement: str, bindings: apsw.Bindings | None = None) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement, bindings).fetchall()

    def row(self, statement: str, bindings: apsw.Bindings | None = None) -> tuple[Any, ...] | None:
        return self.connection.execute(statement, bindings).fetchone()

    def value(self, statement: str, bindings: apsw.Bindings | None = None) -> Any:
        """The first column of the first row; None when there is none."""
        return self.connection.execute(statement, bindings).get

    def write_counters(self) -> None:
        if self._arrivals is not None:
            self._arrivals.count_many()
        for (kind, what), jobs in self.tallies.items():
            if jobs:
                self.connection.execute(ADD_TALLY, (*kind, what, jobs))
            if jobs < 0:
                self.connection.execute(DROP_TALLY, (*kind, what))
        for (minute, (job_type, queue, priority), outcome, bucket), sums in self.counts.items():
            self.connection.execute(COUNT, (minute, job_type, queue, priority, outcome.value, bucket, *sums))


GROUP_MAX = 256  # verbs in one transaction: limits how long others wait for the lock


Done = Callable[[Any, BaseException | None], None]


class Verb(msgspec.Struct, eq=False):
    """A queued piece of work. `essential` verbs (settling, leases) may spend the reserve of a full disk."""

    name: str
    run: Callable[..., Any]
    arguments: tuple[Any, ...]  # besides the transaction, which comes first
    done: Done  # called on the event loop, with a result or an error
    essential: bool
    result: Any = None
    error: BaseException | None = None


def answer(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """On the event loop. A caller that was cancelled meanwhile no longer waits."""
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


# Which file and which write-ahead log are open, and whether they are still there. Checked after every commit: a system
# call for each file would be a tenth of a submit, so the folder is checked first. As long as its change time is the
# same, nothing in it was removed or replaced.

SETTLED_SECONDS = 2.0  # more than the time of a folder is coarse: what comes within a tick of it leaves no mark
FRESH_SECONDS = 1.0  # how long to believe it: a file can also be covered by a mount, which leaves none


class Sight(NamedTuple):
    """A folder, and when an entry of it was last added, removed or renamed. No program can set that time."""

    device: int
    inode: int
    changed_ns: int


class Folder:
    """Tells whether what was found in a folder still holds."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.clock: Clock = SystemClock()
        # Each is set at once: several threads read and write them.
        self._last: tuple[Sight | None, float] = None, 0.0  # and since when it is like that
        self._sure: tuple[Sight | None, float] = None, 0.0  # and until when

    def look(self) -> Sight:
        """Return how the folder is now. Ask before reading what is in it."""
        stat = os.stat(self.path)
        return Sight(stat.st_dev, stat.st_ino, stat.st_ctime_ns)

    def is_known(self, sight: Sight) -> bool:
        """Return whether everything is as it was found."""
        sure, until = self._sure
        return sight == sure and self.clock.monotonic() < until

    def found(self, sight: Sight) -> None:
        """Note that the files were read after this look at the folder. If its time was old enough, that still holds for
        as long as the time stays the same."""
        now = self.clock.monotonic()
        last, since = self._last
        if sight != last:
            self._last = sight, now
        elif now - since > SETTLED_SECONDS:
            self._sure = sight, now + FRESH_SECONDS


class Identity:
    """Which file this is, and which write-ahead log. A file that vanished or was replaced must never become a new,
    empty queue; and what is written to a log that was removed is seen by no other process, and lost with this one."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)  # not a Path, which os.stat would convert at each commit
        self.log = f"{path}-wal"
        self.inode = _inode(self.path)
        self.log_inode = _inode(self.log)  # SQLite keeps the file for as long as a connection is open
        # What a link names may be replaced in another folder.
        self.folder = None if os.path.islink(path) else Folder(str(path.parent))

    def check(self) -> None:
        if self.folder is None:
            self._check_files()
            return
        try:
            sight = self.folder.look()
        except OSError:
            self._check_files()
            return
        if not self.folder.is_known(sight):
            self._check_files()
            self.folder.found(sight)

    def _check_files(self) -> None:
        if _inode(self.path) != self.inode:
            raise StoreGone(
                f"{self.path} vanished or was replaced while the app was running: stop it, and restore the file"
            )
        if self.log_inode is None:
            self.log_inode = _inode(self.log)
        elif _inode(self.log) != self.log_inode:
            name = os.path.basename(self.path)
            raise StoreGone(
                f"{self.log} was removed or replaced while the app was running, and the last changes are in it: stop"
                f" every process that uses {name}, check it with PRAGMA integrity_check, and restore a backup if it is"
                " damaged; see docs/howto/backup"
            )


def _inode(path: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


RESERVE_BYTES_MAX = 8 * 1024 * 1024
RESERVE_SECONDS = 1.0  # how old a look may be
RESERVE_SHARE = 8  # never more than an eighth of the volume: small test volumes have a reserve too


class Reserve:
    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".reserve")
        self._name = str(self.path)
        self.is_sure = False  # that no other process has written since the last commit
        self._seen_at = -RESERVE_SECONDS

    def ensure(self) -> bool:
        """True when the reserve is in place: as of a moment ago, where no other process can have settled since."""
        now = time.monotonic()
        if self.is_sure and now - self._seen_at < RESERVE_SECONDS:
            return True
        self._seen_at = -RESERVE_SECONDS
        try:
            if os.stat(self._name).st_size > 0:
                self._seen_at = now
                return True
        except OSError:
            pass
        try:
            disk = shutil.disk_usage(self.path.parent)
            size = min(RESERVE_BYTES_MAX, disk.total // RESERVE_SHARE)
            if disk.free < 2 * size:  # what is free may be the reserve that another process has just given up
                return False
            descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                _allocate(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                self.path.unlink()
            return False
        return True

    def spend(self) -> bool:
        """Free the space for a settlement; False when there is none left."""
        self._seen_at = -RESERVE_SECONDS
        try:
            self.path.unlink()
        except OSError:
            return False
        return True


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.write(descriptor, bytes(size))


# Errors of the file, not of the verb that met them.
_TROUBLE = (apsw.FullError, apsw.IOError, apsw.BusyError, apsw.CorruptError, apsw.ReadOnlyError, StoreFull, StoreGone)


class Writer:
    def __init__(
        self,
        connection: apsw.Connection,
        path: Path,
        loop: asyncio.AbstractEventLoop,
        committed: Callable[[set[Signal]], None],
    ) -> None:
        self.connection = connection
        self.path = str(path)
        self.loop = loop
        self.committed = committed
        self.identity = Identity(path)
        self.reserve = Reserve(path)
        self.reserve.ensure()
        self._running: Verb | None = None
        self._known: Known | None = None  # as of the last commit, if that was of inserts only
        self._known_at = 0  # the version of the file by then: any commit, also of other processes, changes it
        self._using = threading.RLock()  # held by the thread that uses the connection; it knows by which
        self._stopped = False
        self.queue: SimpleQueue[Verb | None] = SimpleQueue()
        self.pid = os.getpid()
        self.thread = threading.Thread(target=self._work, name="backstay-sqlite-writer", daemon=True)
        self.thread.start()

    def put(self, name: str, run: Callable[..., Any], done: Done, essential: bool, *arguments: Any) -> None:
        if os.getpid() != self.pid:
            raise ForkedStore("this store was opened before fork(): open the app again in the child process")
        self.queue.put(Verb(name, run, arguments, done, essential))

    def stop(self) -> None:
        self.queue.put(None)
        self.thread.join()
        with self._using:
            self._stopped = True

    def run_here(self, name: str, run: Callable[[Tx, *Ts], T], *arguments: *Ts) -> T | None:
        """Run a verb and commit it in the calling thread; None if the connection is in use: a verb that is put into the
        queue now shares a commit with others."""
        if os.getpid() != self.pid:
            raise ForkedStore("this store was opened before fork(): open the app again in the child process")
        if _is_held_here(self._using):
            raise StoreBusy(
                "this thread is in the middle of a submit: a signal handler interrupted it, and cannot submit itself"
            )
        verb = Verb(name, run, arguments, _no_answer, essential=False)
        try:
            try:
                if not self.queue.empty() or not self._using.acquire(blocking=False):
                    return None
                if self._stopped:
                    raise NotOpen("the store is not open: use it inside `async with app:`")
                with gate.lock:
                    signals = self._settle([verb])
            finally:
                self._leave()
        finally:
            self._leave()  # an interrupt (Ctrl-C) may hit the first call
        if signals:
            self.committed(signals)
        if verb.error is not None:
            raise verb.error
        result: T = verb.result
        return result

    def _leave(self) -> None:
        """Let others use the connection, wherever an exception has come from."""
        if _is_held_here(self._using):
            if not self._stopped and self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            self._using.release()

    def _work(self) -> None:
        stopping = False
        while not stopping:
            group, stopping = self._next_group()
            if group:
                with self._using, gate.lock:
                    signals = self._settle(group)
                self._answer(group, signals)

    def _next_group(self) -> tuple[list[Verb], bool]:
        first = self.queue.get()
        if first is None:
            return [], True
        group = [first]
        while len(group) < GROUP_MAX:
            try:
                verb = self.queue.get_nowait()
            except Empty:
                break
            if verb is None:
                return group, True
            group.append(verb)
        return group, False

    def _settle(self, group: list[Verb]) -> set[Signal]:
        """Run the group as one transaction. A verb that fails by itself is left out and the others run again: nothing
        of them is committed yet. If the error is that of the file, each runs alone, the essential ones first."""
        while group:
            try:
                return self._transact(group)
            except Exception as error:
                guilty = self._running
                if guilty is None or isinstance(error, _TROUBLE):
                    return self._each_alone(group, error)
                guilty.error = translate(error, self.path)
                group = [verb for verb in group if verb is not guilty]
        return set()

    def _each_alone(self, group: list[Verb], error: Exception) -> set[Signal]:
        if len(group) == 1:
            return self._once_more(group[0], error)
        if isinstance(error, apsw.BusyError | StoreGone):  # alone, each would fail in the same way
            for verb in group:
                verb.error = translate(error, self.path)
            return set()
        signals: set[Signal] = set()
        for verb in sorted(group, key=lambda verb: not verb.essential):
            verb.error = None
            try:
                signals |= self._transact([verb])
            except Exception as again:
                signals |= self._once_more(verb, again)
        return signals

    def _once_more(self, verb: Verb, error: Exception) -> set[Signal]:
        full = isinstance(error, apsw.FullError | StoreFull)
        if full and verb.essential and self.reserve.spend():
            try:
                return self._transact([verb])
            except Exception as again:
                error = again
        verb.error = translate(error, self.path)
        return set()

    def _transact(self, group: list[Verb]) -> set[Signal]:
        self._running = None
        self.reserve.is_sure = False
        known, self._known = self._known, None
        only_inserts = all(verb.name == "insert" for verb in group)
        try:
            self.connection.execute("BEGIN IMMEDIATE")
            if not only_inserts:
                known = None
            elif known is None or self._known_at != self.connection.data_version():
                known = look(self.connection)
            else:
                self.reserve.is_sure = True
            tx = Tx(self.connection, known)
            for verb in group:
                self._run(tx, verb)
            tx.write_counters()
            if failpoints.armed:
                self.hit_failpoints(group, "uncommitted")
            self.connection.execute("COMMIT")
            if failpoints.armed:
                self.hit_failpoints(group, "committed")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        if known is not None:
            self._known, self._known_at = tx.arrivals.known(known), self.connection.data_version()
        self.identity.check()
        return tx.signals

    @staticmethod
    def hit_failpoints(group: list[Verb], moment: str) -> None:
        for verb in group:
            failpoints.hit_moment(verb.name, moment)

    def _run(self, tx: Tx, verb: Verb) -> None:
        if not verb.essential and not self.reserve.ensure():  # released by us, or by another process on this file
            verb.error = StoreFull(
                f"no space left for {self.path}: new jobs are rejected until some is free; running ones can finish"
            )
            return
        self._running = verb
        verb.result = verb.run(tx, *verb.arguments)
        self._running = None

    def _answer(self, group: list[Verb], signals: set[Signal]) -> None:
        if signals:  # first, for the caller wakes up in any case only when this thread sleeps again
            self.committed(signals)
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller is waiting any more
            self.loop.call_soon_threadsafe(_resolve, group)


def _is_held_here(lock: Any) -> bool:
    """Return whether this thread holds a lock: exact even where an interrupt has hit the call that took it."""
    held: bool = lock._is_owned()
    return held


def _no_answer(result: Any, error: BaseException | None) -> None:
    """For a verb whose caller runs it: it reads the result itself."""


def _resolve(group: list[Verb]) -> None:
    for verb in group:
        error = verb.error
        if error is not None and not isinstance(error, Exception):
            error = StoreError(repr(error))
        verb.done(verb.result, error)

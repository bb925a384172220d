"""Opens the SQLite file: safety checks, settings, migrations, SQL files, errors, fork safety.

A file is opened only where it is safe, and its settings are read back and asserted. A fork waits until none of our
threads is inside SQLite: a lock held there would be held forever in the child, whose first call would hang.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any
from weakref import WeakSet

import apsw
import msgspec

from backstay import posix
from backstay.clock import Instant
from backstay.core import open_files
from backstay.core.admission import Turn
from backstay.core.job_fields import ARCHIVED_FIELDS, PLAIN_FIELDS, USUAL
from backstay.core.records import NEW_DEFAULTS, ExpiredClaim, QueueRow, Schedule
from backstay.engines import places, sql_files, sql_rows
from backstay.errors import (
    ConfigurationError,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreMoved,
    StoreUnavailable,
    StoreUnsafe,
)

# What a claim asks for, to be searched by the statement `lanes`. They belong to the connection, and no other sees them.
_ASKED = """
CREATE TEMP TABLE asked_queue (name TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TEMP TABLE asked_type (name TEXT PRIMARY KEY) WITHOUT ROWID;
"""
WAIT_SECONDS = 2.0  # per thread: a thread that waits for another process's write lock may take longer


class _Gate(threading.local):
    """A lock per thread, which is free to take because only a fork ever takes the lock of another thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        with _registering:
            _locks.add(self.lock)


_registering = threading.Lock()
_locks: WeakSet[threading.Lock] = WeakSet()
gate = _Gate()
_one_fork = threading.Lock()
_taken: list[threading.Lock] = []


def _before() -> None:
    own = gate.lock  # first: a thread that has none yet registers it now
    _one_fork.acquire()
    _registering.acquire()
    for lock in tuple(_locks):
        if lock is not own and lock.acquire(timeout=WAIT_SECONDS):
            _taken.append(lock)


def _after() -> None:
    while _taken:
        _taken.pop().release()
    _registering.release()
    _one_fork.release()


posix.at_fork(before=_before, after_in_parent=_after, after_in_child=_after)


MOVED = "backstay moved: "  # how the words of a trigger begin that keeps a queue from changing while it moves


def translate(error: BaseException, path: str) -> BaseException:
    match error:
        case apsw.FullError():
            return StoreFull(f"no space left for {path}: free some disk space; running jobs can still finish")
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"{path} was locked by other processes for too long: retry the call")
        case apsw.NotADBError():
            return StoreUnsafe(f"{path} is not an SQLite database: choose another file")
        case apsw.CorruptError():
            return StoreError(f"{path} is damaged ({error}): restore a backup; see docs/howto/backup")
        case apsw.CantOpenError() | apsw.IOError() if open_files.exhausted():
            return StoreUnavailable(f"{path} cannot be opened: {open_files.what_to_do()}")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return StoreError(f"{path} cannot be written ({error}): check the folder and its permissions")
        case apsw.ConstraintError() if str(error).startswith(MOVED):
            return StoreMoved(str(error).removeprefix(MOVED))
        case apsw.IOError():
            return StoreError(f"disk error on {path} ({error}): nothing of this call was acknowledged")
        case apsw.Error():
            return StoreError(f"{type(error).__name__} on {path}: {error}")
        case _:
            return error


_FOLDER = resources.files("backstay.engines.sqlite")


_COLUMNS = places.columns("seq")
_AS_STORED = ("trigger_rule", "waits", *places.CHILDREN)  # NULL where it is as usual, which an archive leaves out
_ENTERED = {place: names for place, names in places.COLUMNS.items() if place != places.RUNNING}


def joined(of: str = "") -> str:
    """Return the joins that find the place of a job `j`, and its detail; `of` is appended to every alias."""
    keyed = "\n".join(
        f"LEFT JOIN {table} AS {name}{of} ON {name}{of}.seq = j{of}.seq"
        for table, name in (("detail", "d"), ("ended", "e"), ("running", "r"), ("later", "l"), ("waiting", "w"))
    )
    return f"""{keyed}
LEFT JOIN ready AS p{of} ON p{of}.queue = j{of}.queue AND p{of}.job_type = j{of}.job_type
    AND p{of}.fair = (j{of}.fairness_key IS NOT NULL) AND p{of}.parked IN (0, 1, 2)
    AND p{of}.priority = coalesce(d{of}.priority, j{of}.priority)
    AND p{of}.scheduled_for = coalesce(d{of}.scheduled_for, j{of}.scheduled_for) AND p{of}.job_id = j{of}.job_id"""


def _spelt(names: Iterable[str]) -> str:
    return ", ".join(_COLUMNS[sql_rows.RENAMED.get(name, name)] for name in names)


def _archived(name: str) -> str:
    if name == "result_tables":
        return "'result_tables', json(d.result_tables)"
    if name in _AS_STORED:
        return f"'{name}', {'j' if name == 'trigger_rule' else 'd'}.{name}"
    return f"'{name}', " + ("e.completed_at" if name == "updated_at" else _COLUMNS[name])


def _bound(names: Iterable[str]) -> str:
    return ", ".join(f":{name}" for name in names)


def _claimed(name: str) -> str:
    name = sql_rows.RENAMED.get(name, name)
    return f"r.{name}" if name in places.COLUMNS[places.RUNNING] else _COLUMNS[name]


def _plainly(name: str) -> str:
    """Return a column of a job that has no detail."""
    if name in places.COLUMNS[places.RUNNING]:
        return f"r.{name}"
    return f"j.{name}" if name in places.FACTS else "NULL" if name in places.KEPT else "0"


# The answer to a claim ends before these fields, where they have their defaults.
_SHORT = sql_rows.CLAIMED.index("payload_version")
_OMITTED = [name for name in sql_rows.CLAIMED[_SHORT:] if name in places.FACTS]


def _has_defaults(names: Iterable[str]) -> str:
    """Return the condition that columns of `job` have the defaults of NewJob."""
    null = [name for name in names if NEW_DEFAULTS[name] is None]
    others = [f"j.{name} = {NEW_DEFAULTS[name]!r}" for name in names if name not in null]
    return " AND ".join([*others, f"coalesce({', '.join(f'j.{name}' for name in null)}) IS NULL"])


class Candidate(msgspec.Struct, array_like=True, gc=False):
    """What a claim reads of a row of `ready` at the head of its lane. The fields are columns, in their order."""

    priority: int
    due: Instant  # of jobs that take turns: when the first of them became due
    job_id: str
    seq: int
    concurrency_key: str | None
    concurrency_limit: int | None
    rate_key: str | None
    rate_count: int | None
    rate_micros: int | None
    rate_cost: int | None
    queue: str
    job_type: str
    fair: int
    attempt: int
    failures: int
    version: int
    awaited: int
    scheduled_for: Instant
    turn: Turn | None = None  # not a column


# A plain insert writes these fields: most jobs have NULL in the rare ones.
RARELY_SET = [name for name in PLAIN_FIELDS if NEW_DEFAULTS.get(name, ...) in (None, USUAL.get(name))]
USUALLY_SET = [name for name in PLAIN_FIELDS if name not in RARELY_SET]
_CANDIDATE = [{"due": "scheduled_for"}.get(name, name) for name in Candidate.__struct_fields__ if name != "turn"]
SHARED = [name for name in PLAIN_FIELDS if name not in ("job_id", "payload")]
ID_LENGTH = 36  # of a UUID


def _values(names: Iterable[str], start: int) -> str:
    return ", ".join(
        f"nullif(?{number}, {USUAL[name]!r})" if name in USUAL else f"?{number}"
        for number, name in enumerate(names, start)
    )


LISTS = {
    "new_columns": ", ".join(PLAIN_FIELDS),
    "new_values": _values(PLAIN_FIELDS, 3),
    "usual_columns": ", ".join(USUALLY_SET),
    "usual_values": _values(USUALLY_SET, 3),
    "shared_columns": ", ".join(SHARED),
    "shared_values": _values(SHARED, 4),
    "id_length": str(ID_LENGTH),
    "fact_columns": ", ".join(places.FACTS),
    "fact_values": _bound(places.FACTS),
    "joined": joined(),
    "joined_donor": joined("_donor"),
    "donor_attempt": "coalesce(" + ", ".join(f"{each}_donor.attempt" for each in "erplw") + ")",
    "standing_columns": _spelt(places.STANDING),
    "record_columns": ", ".join(_COLUMNS.values()),
    "candidate_columns": ", ".join(_CANDIDATE),
    "claimed_columns": ", ".join(_claimed(name) for name in sql_rows.CLAIMED),
    "plainly_claimed_columns": ", ".join(map(_plainly, sql_rows.CLAIMED[:_SHORT])),
    "omitted_columns_have_defaults": _has_defaults(_OMITTED),
    "expired_columns": ", ".join(_claimed(name) for name in ExpiredClaim.__struct_fields__),
    "archived_names_and_columns": ", ".join(map(_archived, ARCHIVED_FIELDS)),
    "status": "CASE WHEN e.seq IS NOT NULL THEN e.status WHEN r.seq IS NOT NULL THEN 'processing'"
    " WHEN l.seq IS NOT NULL THEN l.status WHEN w.seq IS NOT NULL THEN 'waiting' ELSE 'pending' END",
    "detail_columns": ", ".join((*places.DETAIL, *places.KEPT)),
    "detail_values": _bound((*places.DETAIL, *places.KEPT)),
    "detail_changes": ", ".join(
        [f"{name} = excluded.{name}" for name in places.DETAIL]
        + [f"{name} = coalesce(excluded.{name}, {name})" for name in places.KEPT]
    ),
    "event_columns": ", ".join(places.EVENT),
    "event_values": _bound(places.EVENT),
    "schedule_columns": ", ".join(Schedule.__struct_fields__),
    "queue_columns": ", ".join(QueueRow.__struct_fields__),
    "queue_values": _bound(QueueRow.__struct_fields__),
    "limit_columns": ", ".join(sql_rows.LIMIT_COLUMNS),
    "limit_values": _bound(sql_rows.LIMIT_COLUMNS),
    "limit_places": ", ".join(f"?{number}" for number in range(1, len(sql_rows.LIMIT_COLUMNS) + 1)),
    "history_columns": ", ".join(places.HISTORY),
    **{f"{place}_columns": ", ".join(names) for place, names in _ENTERED.items()},
    **{f"{place}_values": _bound(names) for place, names in _ENTERED.items()},
}
RECORD_COLUMNS = tuple(_COLUMNS)  # the names of {record_columns}, in order
STATEMENTS = sql_files.read("backstay.engines.sqlite", LISTS)


def load(name: str) -> str:
    return STATEMENTS[name]


def migrations() -> list[tuple[int, str, str]]:
    """Return (number, name, statements) of each migration, in order."""
    found = []
    for entry in _FOLDER.joinpath("migrations").iterdir():
        if entry.name.endswith(".sql"):
            found.append((int(entry.name[:4]), entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")))
    return sorted(found)


# apsw types a row as any SQLite value; each statement knows its own types.


def rows(connection: apsw.Connection, statement: str, bindings: apsw.Bindings | None = None) -> list[tuple[Any, ...]]:
    return connection.execute(statement, bindings).fetchall()


def row(connection: apsw.Connection, statement: str, bindings: apsw.Bindings | None = None) -> tuple[Any, ...] | None:
    return connection.execute(statement, bindings).fetchone()


def value(connection: apsw.Connection, statement: str, bindings: apsw.Bindings | None = None) -> Any:
    """Return the first column of the first row; None if there is no row."""
    return connection.execute(statement, bindings).get


APPLICATION_ID = 0x4261636B  # "Back", by which a foreign file is recognised
SQLITE_VERSION_MIN = (3, 51, 3)  # earlier ones can corrupt a WAL that two connections reset
BUSY_SECONDS = 10.0
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "fuse.sshfs",
        "fuse.s3fs",
    }
)


def path_of(url: str) -> Path:
    """Return the path of a URL: sqlite:///relative.db or sqlite:////absolute.db."""
    rest = url.removeprefix("sqlite://")
    if not rest.startswith("/") or len(rest) < 2 or rest in ("/:memory:", "/:memory"):
        raise ConfigurationError(
            f"{url!r} names no file: write sqlite:///jobs.db (relative) or sqlite:////var/lib/jobs.db (absolute)"
        )
    if "\0" in rest or rest.endswith("/") or not _encodable(rest):
        raise ConfigurationError(f"{url!r} names no file")
    if "?" in rest:
        raise ConfigurationError(f"{url!r}: an SQLite URL takes no parameters")
    return Path(rest[1:]).absolute()


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def create(path: Path) -> None:
    """Create an empty file that only its owner can read; SQLite gives -wal and -shm the same mode."""
    refuse_network_file_system(path)
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except FileNotFoundError:
        raise ConfigurationError(f"the folder {path.parent} does not exist: create it first") from None
    except OSError as error:
        if open_files.is_shortage(error):
            raise StoreUnavailable(f"{path} cannot be created: {open_files.what_to_do()}") from None
        raise StoreError(f"{path} cannot be created: {error.strerror}") from None


def connect(path: Path) -> apsw.Connection:
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_handler(_Patience())
        _refuse_foreign(connection, path)
        _configure(connection, path)
    except apsw.Error as error:
        raise translate(error, str(path)) from None
    return connection


def _configure(connection: apsw.Connection, path: Path) -> None:
    if _version() < SQLITE_VERSION_MIN:
        raise StoreUnsafe(f"SQLite {apsw.sqlite_lib_version()} can corrupt the file: install apsw >= 3.51.3")
    # Plans do not depend on bound values. Otherwise SQLite compares each with the conditions of partial indexes, and
    # prepares a statement anew whenever one is bound to it, which costs more than to run it.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    mode = _use_wal(connection)
    connection.pragma("synchronous", "FULL")
    connection.pragma("fullfsync", 1)
    connection.pragma("foreign_keys", 1)
    connection.pragma("mmap_size", 0)
    connection.pragma("journal_size_limit", 64 * 1024 * 1024)
    if mode != "wal" or connection.pragma("synchronous") != 2:
        raise StoreUnsafe(f"{path}: could not set journal_mode=WAL and synchronous=FULL (got {mode})")
    connection.execute(_ASKED)


def _use_wal(connection: apsw.Connection) -> object:
    """Switch to WAL, with retries: while another process does the same, SQLite fails at once without calling the busy
    handler."""
    patience = _Patience()
    tries = 0
    while True:
        try:
            return connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            if not patience(tries):
                raise
        tries += 1


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in apsw.sqlite_lib_version().split("."))


class _Patience:
    """Waits for another process's write lock: short sleeps with jitter, so that eight processes take turns."""

    def __init__(self) -> None:
        self.deadline = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self.deadline = now + BUSY_SECONDS
        if now > self.deadline:
            return False
        time.sleep(random.uniform(0.0002, min(0.02, 0.001 * (tries + 1))))
        return True


def migrate(connection: apsw.Connection, path: Path) -> list[str]:
    """Apply missing migrations, one transaction each. Safe if several processes start at once."""
    known = migrations()
    applied = []
    try:
        for number, name, statements in known:
            connection.execute("BEGIN IMMEDIATE")
            try:
                if int(str(connection.pragma("user_version"))) < number:
                    connection.execute(statements)
                    connection.pragma("user_version", number)
                    connection.pragma("application_id", APPLICATION_ID)
                    applied.append(name)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
    except apsw.Error as error:
        raise translate(error, str(path)) from None
    check_schema(connection, path)
    return applied


def check_schema(connection: apsw.Connection, path: Path) -> None:
    newest = migrations()[-1][0]
    stored = int(str(connection.pragma("user_version")))
    if stored > newest:
        raise SchemaMismatch(f"{path} has schema {stored}, this release knows {newest}: upgrade backstay")
    if stored < newest:
        raise SchemaMismatch(f'{path} has schema {stored}, this release needs {newest}: run "backstay migrate"')


def _refuse_foreign(connection: apsw.Connection, path: Path) -> None:
    """Refuse a foreign file before any setting changes it; in one snapshot, because other processes may be
    migrating."""
    with connection:
        mark = connection.pragma("application_id")
        used = connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
    if mark not in (0, APPLICATION_ID) or (mark == 0 and used):
        raise StoreUnsafe(f"{path} belongs to another program: choose another file")


def refuse_network_file_system(path: Path) -> None:
    """Refuse a network file system: locks and shared memory do not work there, and SQLite would corrupt the file
    silently."""
    kind = file_system(Path(os.path.realpath(path)).parent)
    if kind in NETWORK_FILE_SYSTEMS:
        raise StoreUnsafe(f"{path} is on a network file system ({kind}): put it on a local disk")


def file_system(folder: Path) -> str | None:
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return None
    real = os.path.realpath(folder)
    best, kind = "", None
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), left.split(" ")[4])
        if (real == mount or real.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, right.split(" ")[0]
    return kind

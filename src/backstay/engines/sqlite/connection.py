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
from importlib import resources
from pathlib import Path
from typing import Any
from weakref import WeakSet

import apsw

from backstay.core.records import ARCHIVED_FIELDS, ROW_FIELDS
from backstay.engines import sql_files, sql_rows
from backstay.errors import (
    ConfigurationError,
    SchemaMismatch,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreMoved,
    StoreUnsafe,
)

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


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)


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


def _archived(name: str) -> str:
    return f"'{name}', " + (f"json(job.{name})" if name == "result_tables" else f"job.{name}")


LISTS = {
    "new_columns": sql_rows.column_list(ROW_FIELDS),
    "new_values": ", ".join(f"?{number}" for number, _ in enumerate(ROW_FIELDS, start=4)),
    "claimed_columns": sql_rows.claimed_list(),
    "record_columns": sql_rows.column_list(sql_rows.COLUMNS),
    "archived_names_and_columns": sql_rows.column_list(ARCHIVED_FIELDS, _archived),
}
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
    mode = _use_wal(connection)
    connection.pragma("synchronous", "FULL")
    connection.pragma("fullfsync", 1)
    connection.pragma("foreign_keys", 1)
    connection.pragma("mmap_size", 0)
    connection.pragma("journal_size_limit", 64 * 1024 * 1024)
    if mode != "wal" or connection.pragma("synchronous") != 2:
        raise StoreUnsafe(f"{path}: could not set journal_mode=WAL and synchronous=FULL (got {mode})")
    connection.create_scalar_function(
        "trim_history", lambda *texts: sql_rows.trim(str(texts[0])), 1, deterministic=True
    )


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

"""Opening the file: only where it is safe, only with settings that keep the promise, read back and asserted."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import apsw

from holdfast.errors import ConfigurationError, SchemaMismatch, StoreError, StoreGone, StoreUnsafe
from holdfast.stores import history
from holdfast.stores.sqlite.errors import translate
from holdfast.stores.sqlite.sql import migrations

APPLICATION_ID = 0x486F6C64  # "Hold", so that a foreign file is recognised
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
    """sqlite:///relative.db and sqlite:////absolute.db."""
    rest = url.removeprefix("sqlite://")
    if not rest.startswith("/") or len(rest) < 2 or rest in ("/:memory:", "/:memory"):
        raise ConfigurationError(
            f"{url!r} names no file: write sqlite:///jobs.db (relative) or sqlite:////var/lib/jobs.db (absolute)"
        )
    if "\0" in rest or rest.endswith("/") or not _encodable(rest):
        raise ConfigurationError(f"{url!r} names no file")
    if "?" in rest:
        raise ConfigurationError(f"{url!r}: an sqlite URL takes no parameters")
    return Path(rest[1:]).absolute()


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def create(path: Path) -> None:
    """Make an empty file that only its owner can read; SQLite gives -wal and -shm the same mode."""
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
    connection.create_scalar_function("trim_history", lambda *texts: history.trim(str(texts[0])), 1, deterministic=True)


def _use_wal(connection: apsw.Connection) -> object:
    """While another process makes the same switch, SQLite refuses at once and never asks the busy handler."""
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
    """Wait for another process's write lock: short, jittered naps, so that eight processes take turns."""

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
    """Apply what is missing, one transaction each. Safe when several processes start at once."""
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
        raise SchemaMismatch(f"{path} has schema {stored}, this release knows {newest}: upgrade holdfast")
    if stored < newest:
        raise SchemaMismatch(f'{path} has schema {stored}, this release needs {newest}: run "holdfast migrate"')


def _refuse_foreign(connection: apsw.Connection, path: Path) -> None:
    """Before anything is set, which would change the file; in one snapshot, because others may be migrating."""
    with connection:
        mark = connection.pragma("application_id")
        used = connection.execute("SELECT 1 FROM sqlite_schema").fetchone()
    if mark not in (0, APPLICATION_ID) or (mark == 0 and used):
        raise StoreUnsafe(f"{path} is a database of another program: choose another file")


def refuse_network_file_system(path: Path) -> None:
    """Locks and shared memory do not work there; SQLite would corrupt the file without a word."""
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


class Identity:
    """Which file this is. A file that vanished or was replaced must never become a new, empty queue."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inode = self._read()

    def check(self) -> None:
        if self._read() != self.inode:
            raise StoreGone(f"{self.path} vanished or was replaced under the running app: stop, and restore the file")

    def _read(self) -> tuple[int, int] | None:
        try:
            stat = os.stat(self.path)
        except OSError:
            return None
        return stat.st_dev, stat.st_ino

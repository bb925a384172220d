"""What an SQLite file can tell about its own health."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import apsw

from holdfast.store.types import Finding
from holdfast.stores.sqlite import connection as opening
from holdfast.stores.sqlite.reserve import RESERVE_BYTES_MAX
from holdfast.stores.sqlite.sql import migrations

_MIB = 1024 * 1024
WAL_BYTES_WARN = 256 * _MIB  # four times what is left after a checkpoint; then someone keeps one from happening
FREE_BYTES_WARN = 1024 * _MIB


def diagnose(connection: apsw.Connection, path: Path) -> list[Finding]:
    return [
        _engine(),
        _durability(connection),
        _file_system(path),
        _access(path),
        _space(path),
        _schema(connection),
        _wal(path),
        _reserve(path),
        _integrity(connection),
    ]


def _engine() -> Finding:
    return Finding("engine", "ok", f"SQLite {apsw.sqlite_lib_version()} by apsw {apsw.apsw_version()}")


def _durability(connection: apsw.Connection) -> Finding:
    mode, level = connection.pragma("journal_mode"), connection.pragma("synchronous")
    if mode == "wal" and level == 2:
        return Finding(
            "durability", "ok", "journal_mode=WAL, synchronous=FULL: a commit is on disk before it is answered"
        )
    return Finding(
        "durability", "bad", f"journal_mode={mode}, synchronous={level}", "close what else has opened the file"
    )


def _file_system(path: Path) -> Finding:
    kind = opening.file_system(path.parent)
    if kind in opening.NETWORK_FILE_SYSTEMS:
        return Finding("file system", "bad", f"{kind} is a network file system", "move the file to a local disk")
    if kind in ("tmpfs", "ramfs"):
        return Finding("file system", "warn", f"{kind} is memory: a restart loses it", "move the file to a disk")
    return Finding("file system", "ok", f"{kind or 'unknown'}, local")


def _access(path: Path) -> Finding:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        return Finding("access", "warn", f"{path} can be read by others ({mode:o})", f"chmod 600 {path}")
    return Finding("access", "ok", f"{path} is its owner's alone ({mode:o})")


def _space(path: Path) -> Finding:
    disk = shutil.disk_usage(path.parent)
    own = path.stat().st_size / _MIB
    says = f"{disk.free // _MIB:,} MiB of {disk.total // _MIB:,} MiB free, the file has {own:,.1f} MiB"
    if disk.free < 2 * RESERVE_BYTES_MAX:
        return Finding("disk space", "bad", says, "free some: new jobs are refused when it is full")
    if disk.free < FREE_BYTES_WARN:
        return Finding("disk space", "warn", says, "free some before it runs out")
    return Finding("disk space", "ok", says)


def _schema(connection: apsw.Connection) -> Finding:
    stored, known = connection.pragma("user_version"), migrations()[-1][0]
    if stored == known:
        return Finding("schema", "ok", f"version {stored}, as this release has it")
    return Finding("schema", "bad", f"version {stored}; this release has {known}", 'run "holdfast migrate"')


def _wal(path: Path) -> Finding:
    try:
        size = os.stat(f"{path}-wal").st_size
    except OSError:
        size = 0
    if size > WAL_BYTES_WARN:
        return Finding(
            "WAL",
            "warn",
            f"{size // _MIB:,} MiB: a long reader keeps it from being written back",
            "find and end that reader",
        )
    return Finding("WAL", "ok", f"{size / _MIB:,.1f} MiB")


def _reserve(path: Path) -> Finding:
    if path.with_name(path.name + ".reserve").exists():
        return Finding("reserve", "ok", "space is set aside so that running jobs can finish on a full disk")
    return Finding(
        "reserve", "warn", "the space for finishing on a full disk was spent", "free some; it comes back by itself"
    )


def _integrity(connection: apsw.Connection) -> Finding:
    pages = int(str(connection.pragma("page_count")))
    if pages > 250_000:
        return Finding("integrity", "ok", "the file is large and was not read through: PRAGMA quick_check does that")
    answer = str(connection.pragma("quick_check", 1))
    if answer == "ok":
        return Finding("integrity", "ok", "every page reads as it should")
    return Finding("integrity", "bad", answer[:200], "stop the workers and restore a backup")

"""Maintenance verbs on SQLite: promote, release, rows of workers and types, schedules, diagnosis.

A schedule is stored as a whole, and moved past its ticks in the commit that inserts their jobs.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

import apsw
import msgspec

from backstay.clock import Instant
from backstay.core import run_limits, sensitive
from backstay.core.records import (
    Declaration,
    Finding,
    Firing,
    JobType,
    LimitChange,
    LimitOf,
    LimitRow,
    Promoted,
    QueueChange,
    QueueRow,
    Schedule,
    Signal,
    Verdict,
    WorkerRow,
)
from backstay.core.workers import former_since
from backstay.engines import sql_rows
from backstay.engines.sqlite import admission, insert, read, settle, waits
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite import places as sqlite_places
from backstay.engines.sqlite import release as sqlite_release
from backstay.engines.sqlite.connection import load, migrations
from backstay.engines.sqlite.writer import RESERVE_BYTES_MAX, Tx
from backstay.limits import HISTORY_HEAD, HISTORY_TAIL

DUE = load("due")
PROMOTE = [load(name) for name in ("promote_ready", "promote_leave")]
PROMOTE_EVENT = load("promote_event")
PROMOTE_TALLY = load("promote_tally")
PROMOTE_LONG = load("promote_long")
NEXT_DUE = load("next_due")
RELEASE_NEEDED = load("release_needed")
BEAT = load("beat")
REMEMBER_WORKER = load("remember_worker")
DROP_WORKER = load("drop_worker")
FORGET_WORKERS = load("forget_workers")
TYPE_OF = load("type_of")
SAVE_TYPE = load("save_type")


def promote(tx: Tx, now: Instant, limit: int) -> Promoted:
    due = tx.value(DUE, {"now": now, "limit": limit})
    count = 0
    if due != "[]":
        tx.connection.execute(PROMOTE_EVENT, (due, now))
        for job_type, queue, priority, status, jobs in tx.rows(PROMOTE_TALLY, (due,)):
            tx.tally((job_type, queue, priority), status, -jobs)
        long = tx.rows(PROMOTE_LONG, (due, HISTORY_HEAD + HISTORY_TAIL))
        for statement in PROMOTE:
            tx.connection.execute(statement, (due,))
        count = tx.connection.changes()
        for seq, version in long:
            sqlite_places.trim(tx, seq, version)
        tx.signals.add(Signal.READY)
    count += waits.time_out(tx, now, limit)
    admission.unpark_due(tx, now)
    _end_pauses(tx, now)
    return Promoted(count, next_due(tx.connection, now))


def next_due(connection: apsw.Connection, now: Instant) -> Instant | None:
    """Return when the next scheduled, retrying or rate-limited job may run, a wait for an event times out, or a pause
    is over."""
    due: Instant | None = sqlite_connection.value(connection, NEXT_DUE)
    rate_due = admission.next_due(connection, now)
    times = (due, rate_due, waits.next_timeout(connection))
    return min((each for each in times if each is not None), default=None)


def release_needed(connection: apsw.Connection) -> bool:
    return bool(sqlite_connection.value(connection, RELEASE_NEEDED))


def release(tx: Tx, now: Instant, limit: int) -> int:
    return sqlite_release.release(tx, now, limit) + settle.drop_stale(tx)


def beat(tx: Tx, worker: WorkerRow) -> None:
    tx.connection.execute(BEAT, (worker.worker_id, worker.heartbeat_at, msgspec.json.encode(worker).decode()))


def forget(tx: Tx, worker_ids: Sequence[str], now: Instant) -> None:
    tx.connection.executemany(REMEMBER_WORKER, [(each, now) for each in worker_ids])
    tx.connection.executemany(DROP_WORKER, [(each,) for each in worker_ids])
    tx.connection.execute(FORGET_WORKERS, (former_since(now),))


def announce(tx: Tx, types: Sequence[JobType]) -> None:
    for each in types:
        _save_type(tx, sensitive.announced(_stored_type(tx, each.job_type), each))


def unmark(tx: Tx, job_type: str, marks: Sequence[str]) -> Verdict:
    stored = _stored_type(tx, job_type)
    if stored is None:
        return Verdict.GONE
    _save_type(tx, sensitive.without(stored, marks))
    return Verdict.APPLIED


def _stored_type(tx: Tx, job_type: str) -> JobType | None:
    details = tx.value(TYPE_OF, (job_type,))
    return None if details is None else msgspec.json.decode(details, type=JobType)


def _save_type(tx: Tx, job_type: JobType) -> None:
    tx.connection.execute(SAVE_TYPE, (job_type.job_type, msgspec.json.encode(job_type).decode()))


SAVE = load("save_schedule")
FIRE = load("fire")
FIRED_INTO = load("fired_into")
_FIELDS = Schedule.__struct_fields__
NAMED = load("schedules_named")
AFTER = load("schedules_after")
UPCOMING = load("upcoming")
VERSION_OF = load("version_of")
DROP_SCHEDULE = load("drop_schedule")
SAVE_DECLARATION = load("save_declaration")
DECLARATIONS = load("declarations")


def save_schedule(tx: Tx, schedule: Schedule, expected_version: int | None) -> Verdict:
    stored: int | None = tx.value(VERSION_OF, (schedule.name,))
    if stored is None and expected_version is not None:
        return Verdict.GONE
    tx.connection.execute(SAVE, {**msgspec.structs.asdict(schedule), "expected": expected_version})
    if not tx.connection.changes():
        return Verdict.STALE
    tx.signals.add(Signal.PLANNED)
    return Verdict.APPLIED


def drop_schedule(tx: Tx, name: str, expected_version: int | None) -> Verdict:
    tx.connection.execute(DROP_SCHEDULE, (name, expected_version))
    if tx.connection.changes():
        return Verdict.APPLIED
    return Verdict.GONE if tx.value(VERSION_OF, (name,)) is None else Verdict.STALE


def save_declaration(tx: Tx, declaration: Declaration, expected_version: int | None) -> Verdict:
    details = msgspec.json.encode(declaration).decode()
    tx.connection.execute(SAVE_DECLARATION, (declaration.origin, declaration.version, details, expected_version))
    return Verdict.APPLIED if tx.connection.changes() else Verdict.STALE


def declarations(connection: apsw.Connection) -> list[Declaration]:
    found = sqlite_connection.rows(connection, DECLARATIONS)
    return [msgspec.json.decode(details, type=Declaration) for (details,) in found]


def schedules(
    connection: apsw.Connection, names: Sequence[str], after: str = "", limit: int | None = None
) -> list[Schedule]:
    found = (
        sqlite_connection.rows(connection, NAMED, (msgspec.json.encode(names).decode(),))
        if names
        else sqlite_connection.rows(connection, AFTER, (after, -1 if limit is None else limit))
    )
    return [Schedule(**dict(zip(_FIELDS, row, strict=True))) for row in found]


def upcoming(connection: apsw.Connection, limit: int) -> list[Schedule]:
    found = sqlite_connection.rows(connection, UPCOMING, (limit,))
    return [Schedule(**dict(zip(_FIELDS, row, strict=True))) for row in found]


def fire(tx: Tx, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
    return [_fire_one(tx, firing, now) for firing in firings]


def _fire_one(tx: Tx, firing: Firing, now: Instant) -> Verdict:
    last = firing.jobs[-1] if firing.jobs else None
    tx.connection.execute(
        FIRE,
        {
            "name": firing.name,
            "version": firing.version,
            "due_at": firing.due_at,
            "next_at": firing.next_at,
            "last_at": None if last is None else last.tick_at,
            "last_job_id": None if last is None else last.job_id,
            "skipped": firing.skipped,
            "skipped_at": firing.skipped_at,
        },
    )
    if not tx.connection.changes():
        return Verdict.GONE if tx.value(VERSION_OF, (firing.name,)) is None else Verdict.STALE
    if last is not None and (stands_for := insert.insert(tx, firing.jobs, now)[-1].job_id) != last.job_id:
        tx.connection.execute(FIRED_INTO, (firing.name, stands_for))
    return Verdict.APPLIED


_MIB = 1024 * 1024
WAL_BYTES_WARN = 256 * _MIB  # four times the size after a checkpoint: beyond this a reader prevents checkpoints
MISPLACED = load("misplaced")
PLACES_CHECKED_MAX = 100_000  # jobs that arrived last: less than a second
CHECKED_PAGES_MAX = 25_000  # 100 MB: a check reads all of them, and takes 15 s for a gigabyte
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
        _places(connection),
    ]


def _engine() -> Finding:
    return Finding("engine", "ok", f"SQLite {apsw.sqlite_lib_version()} by apsw {apsw.apsw_version()}")


def _durability(connection: apsw.Connection) -> Finding:
    mode, level = connection.pragma("journal_mode"), connection.pragma("synchronous")
    if mode == "wal" and level == 2:
        return Finding(
            "durability", "ok", "journal_mode=WAL, synchronous=FULL: a commit is on disk before it is acknowledged"
        )
    return Finding(
        "durability",
        "bad",
        f"journal_mode={mode}, synchronous={level}",
        "close other programs that have opened the file",
    )


def _file_system(path: Path) -> Finding:
    kind = sqlite_connection.file_system(path.parent)
    if kind in sqlite_connection.NETWORK_FILE_SYSTEMS:
        return Finding("file system", "bad", f"{kind} is a network file system", "move the file to a local disk")
    if kind in ("tmpfs", "ramfs"):
        return Finding("file system", "warn", f"{kind} is in memory: a restart loses it", "move the file to a disk")
    return Finding("file system", "ok", f"{kind or 'unknown'}, local")


def _access(path: Path) -> Finding:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & 0o077:
        return Finding("access", "warn", f"{path} can be read by others ({mode:o})", f"chmod 600 {path}")
    return Finding("access", "ok", f"{path} is readable by its owner only ({mode:o})")


def _space(path: Path) -> Finding:
    disk = shutil.disk_usage(path.parent)
    own = path.stat().st_size / _MIB
    says = f"{disk.free // _MIB:,} MiB of {disk.total // _MIB:,} MiB free; the file takes {own:,.1f} MiB"
    if disk.free < 2 * RESERVE_BYTES_MAX:
        return Finding("disk space", "bad", says, "free some: new jobs are rejected when it is full")
    if disk.free < FREE_BYTES_WARN:
        return Finding("disk space", "warn", says, "free some before it runs out")
    return Finding("disk space", "ok", says)


def _schema(connection: apsw.Connection) -> Finding:
    stored, known = connection.pragma("user_version"), migrations()[-1][0]
    if stored == known:
        return Finding("schema", "ok", f"version {stored}, current")
    return Finding("schema", "bad", f"version {stored}; this release needs {known}", 'run "backstay migrate"')


def _wal(path: Path) -> Finding:
    try:
        size = os.stat(f"{path}-wal").st_size
    except OSError:
        size = 0
    if size > WAL_BYTES_WARN:
        return Finding(
            "WAL",
            "warn",
            f"{size // _MIB:,} MiB: a long-running reader keeps it from being checkpointed",
            "find and end that reader",
        )
    return Finding("WAL", "ok", f"{size / _MIB:,.1f} MiB")


def _reserve(path: Path) -> Finding:
    if path.with_name(path.name + ".reserve").exists():
        return Finding("reserve", "ok", "reserved, so that running jobs can finish on a full disk")
    return Finding(
        "reserve",
        "warn",
        "the reserve for finishing jobs on a full disk is used up",
        "free some disk space; the reserve is restored automatically",
    )


def _integrity(connection: apsw.Connection) -> Finding:
    pages = int(str(connection.pragma("page_count")))
    if pages > CHECKED_PAGES_MAX:
        return Finding("integrity", "ok", "the file is too large to check here: run PRAGMA quick_check")
    answer = str(connection.pragma("quick_check", 1))
    if answer == "ok":
        return Finding("integrity", "ok", "every page is intact")
    return Finding("integrity", "bad", answer[:200], "stop the workers and restore a backup")


def _places(connection: apsw.Connection) -> Finding:
    """Check that every job has exactly one place: a job without one would never run."""
    [found] = sqlite_connection.rows(connection, MISPLACED, (PLACES_CHECKED_MAX,))
    return sql_rows.places_finding(*found)


# Queues, and limits at run time

SAVE_QUEUE = load("save_queue")
DROP_QUEUE = load("drop_queue")
SAVE_LIMIT = load("save_limit")
DROP_LIMIT = load("drop_limit")
PAUSES_OVER = load("pauses_over")


def change_queue(tx: Tx, name: str, change: QueueChange, now: Instant) -> QueueRow:
    row = run_limits.changed_queue(_queue(tx, name), change, now)
    _save_queue(tx, row)
    _tell(tx, change)
    return row


def change_limit(tx: Tx, of: LimitOf, name: str, change: LimitChange, now: Instant) -> LimitRow:
    row = run_limits.changed_limit(_limit(tx, of, name), change, now)
    _save_limit(tx, row)
    _tell(tx, change)
    if change.limits:  # for jobs that wait already, too
        sqlite_release.unpark_now(tx, name)
        admission.look_again(tx, name, now)
    return row


def _tell(tx: Tx, change: QueueChange | LimitChange) -> None:
    if change.paused is False:
        tx.signals.add(Signal.READY)
    if change.until is not None:
        tx.signals.add(Signal.DUE)


def _queue(tx: Tx, name: str) -> QueueRow:
    row = tx.row(read.QUEUE, (name,))
    return QueueRow(name=name) if row is None else sql_rows.queue(row)


def _save_queue(tx: Tx, row: QueueRow) -> None:
    if run_limits.says_nothing(row):
        tx.connection.execute(DROP_QUEUE, (row.name,))
    else:
        tx.connection.execute(SAVE_QUEUE, msgspec.structs.asdict(row))


def _limit(tx: Tx, of: LimitOf, name: str) -> LimitRow:
    row = tx.row(read.LIMIT, (of.value, name))
    return LimitRow(of=of, name=name) if row is None else sql_rows.limit(row)


def _save_limit(tx: Tx, row: LimitRow) -> None:
    if run_limits.says_nothing(row):
        tx.connection.execute(DROP_LIMIT, (row.of.value, row.name))
    else:
        tx.connection.execute(SAVE_LIMIT, msgspec.structs.asdict(row))


def _end_pauses(tx: Tx, now: Instant) -> None:
    for of, name in tx.rows(PAUSES_OVER, (now,)):
        if of == "queue":
            _save_queue(tx, run_limits.resumed(_queue(tx, name)))
        else:
            _save_limit(tx, run_limits.resumed(_limit(tx, LimitOf(of), name)))
        tx.signals.add(Signal.READY)

"""A queue that moves: read out whole, a page at a time, and written as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.limits import MOVE_PAGE_BYTES_MAX
from holdfast.store import dumps
from holdfast.store.dumps import ArchiveDump, Dump, GuardDump, JobDump, StepDump, TotalDump
from holdfast.store.moves import Exported, MoveState, refuse_other
from holdfast.store.tables import ResultTable
from holdfast.store.types import ApiKey, AuditEntry, Counter, JobType, QueueRow, Schedule
from holdfast.stores import access_rows, dumping, records
from holdfast.stores.sqlite import (
    access,
    exporting_rows,
    freezing,
    queueing,
    reading,
    scheduling,
    sql,
    tables,
    totalling,
)
from holdfast.stores.sqlite.freezing import freeze as freeze
from holdfast.stores.sqlite.freezing import moving as moving
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx

_SELECT, _, _ = load("get").partition("FROM ")
_JOBS = f"{_SELECT.rstrip()}, {', '.join(dumping.BESIDE)}, seq FROM job WHERE seq > ? ORDER BY seq LIMIT ?"
_EDGES = "SELECT parent_id, met, joined FROM edge INDEXED BY edge_child WHERE child_id = ?"
_STEPS = load("export_steps")
_ARCHIVE = load("export_archive")
_GUARDS = load("export_guards")
_COUNTERS = load("export_counters")
_SUMS = load("export_totals")
_TRAIL = load("export_audit")
_RESTORE_JOB = (
    f"INSERT OR IGNORE INTO job ({', '.join(dumping.JOB_COLUMNS)})"  # noqa: S608
    f" VALUES ({', '.join('?' * len(dumping.JOB_COLUMNS))})"
)
_RESTORE_EDGE = "INSERT OR IGNORE INTO edge (child_id, parent_id, met, joined) VALUES (?, ?, ?, ?)"
_RESTORE_STEP = "INSERT OR IGNORE INTO step (job_id, name, answer, attempt, recorded_at) VALUES (?, ?, ?, ?, ?)"
_RESTORE_ARCHIVE = (
    "INSERT OR IGNORE INTO archive (job_id, archived_at, status, has_files, details) VALUES (?, ?, ?, ?, ?)"
)
_RESTORE_GUARD = "INSERT OR IGNORE INTO dedup (dedup_key, job_id, until) VALUES (?, ?, ?)"
_RESTORE_COUNTER = "INSERT OR IGNORE INTO counter VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_RESTORE_SUM = "INSERT OR REPLACE INTO counter_sum VALUES (?, ?, ?, ?, ?, ?, ?)"
_RESTORE_QUEUE = "INSERT OR IGNORE INTO queue VALUES (?, ?, ?, ?, ?)"
_RESTORE_TYPE = "INSERT OR REPLACE INTO job_type (job_type, details) VALUES (?, ?)"

Source = Iterator[tuple[Dump, str]]  # each with the cursor behind it


# Reading out


def export(connection: apsw.Connection, kind: str, after: str | None, limit: int) -> Exported:
    """Pages end at their size, too: `limit` large jobs would not fit into anybody's memory."""
    items: list[bytes] = []
    size, cursor = 0, None
    for dump, place in _SOURCES[kind](connection, after, limit + 1):
        if len(items) == limit or size >= MOVE_PAGE_BYTES_MAX:
            return Exported(tuple(items), cursor)
        items.append(dumps.packed(dump))
        size, cursor = size + len(items[-1]), place
    return Exported(tuple(items))


def _rows(connection: apsw.Connection, statement: str, bindings: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """One by one: a page may end before the statement does."""
    yield from connection.execute(statement, tuple(bindings))


def _whole(found: Iterable[Dump], after: str | None) -> Source:
    """Of what there is little: counted through."""
    for number, dump in enumerate(found):
        if number >= int(after or 0):
            yield dump, str(number + 1)


def _jobs(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for row in _rows(connection, _JOBS, (int(after or 0), limit)):
        yield dumping.job(row[:-1], sql.rows(connection, _EDGES, (row[0],))), str(row[-1])


def _steps(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for row in _rows(connection, _STEPS, (*dumping.position(after, ("", "")), limit)):
        yield StepDump(*row), dumping.cursor(*row[:2])


def _archive(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for job_id, *rest in _rows(connection, _ARCHIVE, (after or "", limit)):
        yield dumping.archived(*rest), job_id


def _guards(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for row in _rows(connection, _GUARDS, (after or "", limit)):
        yield GuardDump(*row), row[0]


def _counters(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for row in _rows(connection, _COUNTERS, (*dumping.position(after, (-1, "", "", 0, "")), limit)):
        yield records.counter(*row), dumping.cursor(*row[:5])


def _totals(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    until = totalling.until(connection)
    for row in _rows(connection, _SUMS, (*dumping.position(after, ("", "", "")), limit)):
        yield TotalDump(records.total(*row), until), dumping.cursor(*row[:3])


def _trail(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for row in _rows(connection, _TRAIL, (after or "", limit)):
        yield access_rows.entry(row), row[0]


_SOURCES: dict[str, Callable[[apsw.Connection, str | None, int], Source]] = {
    dumps.TYPES: lambda c, after, _: _whole(reading.job_types(c), after),
    dumps.QUEUES: lambda c, after, _: _whole(queueing.queues(c), after),
    dumps.SCHEDULES: lambda c, after, _: _whole(scheduling.schedules(c, ()), after),
    dumps.TABLES: lambda c, after, _: _whole(tables.result_tables(c), after),
    dumps.JOBS: _jobs,
    dumps.STEPS: _steps,
    dumps.ARCHIVE: _archive,
    dumps.GUARDS: _guards,
    dumps.COUNTERS: _counters,
    dumps.TOTALS: _totals,
    dumps.KEYS: lambda c, after, _: _whole(access.keys(c, ()), after),
    dumps.AUDIT: _trail,
    dumps.ROWS: exporting_rows.export,
}


# Writing


def restore(tx: Tx, kind: str, items: Sequence[bytes], state: MoveState) -> None:
    refuse_other(moving(tx.connection), state)
    if items:
        with freezing.restoring(tx):
            _RESTORES[kind](tx, items)
    freezing.keep(tx, state)


def _restore_jobs(tx: Tx, items: Sequence[bytes]) -> None:
    jobs = dumps.all_unpacked(dumps.JOBS, items, JobDump)
    tx.connection.executemany(_RESTORE_JOB, map(dumping.job_values, jobs))
    edges = ((job.record.job_id, *msgspec.structs.astuple(edge)) for job in jobs for edge in job.edges)
    tx.connection.executemany(_RESTORE_EDGE, edges)


def _restore_archive(tx: Tx, items: Sequence[bytes]) -> None:
    tx.connection.executemany(
        _RESTORE_ARCHIVE,
        (
            (
                dump.record.job_id,
                dump.record.archived_at,
                dump.record.status.value,
                dump.has_files,
                dumping.archived_details(dump),
            )
            for dump in dumps.all_unpacked(dumps.ARCHIVE, items, ArchiveDump)
        ),
    )


def _restore_types(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.TYPES, items, JobType)
    tx.connection.executemany(_RESTORE_TYPE, ((each.job_type, msgspec.json.encode(each).decode()) for each in found))


def _restore_schedules(tx: Tx, items: Sequence[bytes]) -> None:
    for schedule in dumps.all_unpacked(dumps.SCHEDULES, items, Schedule):
        if not scheduling.schedules(tx.connection, [schedule.name]):
            tx.execute(scheduling.SAVE, {**msgspec.structs.asdict(schedule), "expected": None})


def _restore_counters(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.COUNTERS, items, Counter)
    tx.connection.executemany(_RESTORE_COUNTER, (row for each in found for row in records.counter_rows(each)))


def _restore_totals(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.TOTALS, items, TotalDump)
    tx.connection.executemany(_RESTORE_SUM, (row for each in found for row in records.total_rows(each.total)))
    totalling.keep_until(tx, found[0].until)


def _restore_keys(tx: Tx, items: Sequence[bytes]) -> None:
    for key in dumps.all_unpacked(dumps.KEYS, items, ApiKey):
        access.save_key(tx, key, new=False)


def _restore_rows(kind: str, statement: str, expected: type[Any]) -> Callable[[Tx, Sequence[bytes]], None]:
    """For what is stored as it travels."""

    def run(tx: Tx, items: Sequence[bytes]) -> None:
        found = dumps.all_unpacked(kind, items, expected)
        tx.connection.executemany(statement, (msgspec.structs.astuple(each) for each in found))

    return run


def _declare(tx: Tx, items: Sequence[bytes]) -> None:
    tables.declare(tx, dumps.all_unpacked(dumps.TABLES, items, ResultTable))


_RESTORES: dict[str, Callable[[Tx, Sequence[bytes]], None]] = {
    dumps.TYPES: _restore_types,
    dumps.QUEUES: _restore_rows(dumps.QUEUES, _RESTORE_QUEUE, QueueRow),
    dumps.SCHEDULES: _restore_schedules,
    dumps.TABLES: _declare,
    dumps.JOBS: _restore_jobs,
    dumps.STEPS: _restore_rows(dumps.STEPS, _RESTORE_STEP, StepDump),
    dumps.ARCHIVE: _restore_archive,
    dumps.GUARDS: _restore_rows(dumps.GUARDS, _RESTORE_GUARD, GuardDump),
    dumps.COUNTERS: _restore_counters,
    dumps.TOTALS: _restore_totals,
    dumps.KEYS: _restore_keys,
    dumps.AUDIT: _restore_rows(dumps.AUDIT, access.AUDIT, AuditEntry),
    dumps.ROWS: exporting_rows.restore,
}

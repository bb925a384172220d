"""Transfer of a queue from or to SQLite: freeze, export page by page, and restore as it was.

A queue in transfer is protected from changes by triggers. Other processes meet them with their next statement, and a
queue that is not in transfer pays nothing for them. All rows of a result table are transferred, of every attempt.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import apsw
import msgspec

from backstay.clock import Instant
from backstay.core import dumps, result_tables
from backstay.core.dumps import (
    INTO,
    SEALED,
    Adopted,
    ArchiveDump,
    Dump,
    Exported,
    GuardDump,
    JobDump,
    MailboxDump,
    MoveState,
    OutputDump,
    RowDump,
    StepDump,
    TotalDump,
    is_as_closed,
    refusal,
    refuse_freezing,
    refuse_other,
)
from backstay.core.records import (
    ApiKey,
    AuditEntry,
    Counter,
    Declaration,
    JobType,
    LimitRow,
    QueueRow,
    Schedule,
    Verdict,
)
from backstay.core.result_tables import ColumnKind, ResultTable
from backstay.core.states import ACTIVE
from backstay.engines import sql_rows
from backstay.engines.places import STORED, TALLIED
from backstay.engines.sqlite import access, insert, maintenance, read
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite import places as sqlite_places
from backstay.engines.sqlite import results as sqlite_results
from backstay.engines.sqlite.connection import MOVED, RECORD_COLUMNS, load
from backstay.engines.sqlite.writer import Tx
from backstay.limits import MOVE_PAGE_BYTES_MAX


def export_rows(connection: apsw.Connection, after: str | None, limit: int) -> Iterator[tuple[Dump, str]]:
    begun_with, *place = sql_rows.position(after, ("",))
    for table in sorted(sqlite_results.result_tables(connection), key=lambda each: each.name):
        if table.name < begun_with:
            continue
        begun = table.name == begun_with
        key = [column.name for column in table.columns].index(table.key)
        for row in connection.execute(_everything(table, begun), (*(place if begun else ()), limit)):
            stored = sqlite_results.row_of(table.columns, row[2:])
            yield (
                RowDump.of(table.name, int(str(row[0])), int(str(row[1])), stored),
                sql_rows.cursor(table.name, stored.job_id, stored.values[key]),
            )


def _everything(table: ResultTable, begun: bool) -> str:
    """Return the statement for a page by job and key. Index: the table's primary key."""
    columns = ", ".join([*sqlite_results.ORIGIN, *(sqlite_results.quoted(column.name) for column in table.columns)])
    order = f"job_id, {sqlite_results.quoted(table.key)}"
    after = f" WHERE ({order}) > (?, ?)" if begun else ""
    name = sqlite_results.quoted(f"result_{table.name}")
    return f"SELECT bs_attempt, bs_part, {columns} FROM {name}{after} ORDER BY {order} LIMIT ?"  # noqa: S608


def restore_rows(tx: Tx, items: Sequence[bytes]) -> None:
    known = {table.name: table for table in sqlite_results.result_tables(tx.connection)}
    for dump in dumps.all_unpacked(dumps.ROWS, items, RowDump):
        table = known[dump.table]
        own = (dump.job_id, dump.attempt, dump.part, result_tables.text(dump.created_at))
        kept = (
            sqlite_results.kept(value, column.kind is ColumnKind.MOMENT)
            for column, value in zip(table.columns, dump.values, strict=True)
        )
        tx.connection.execute(sqlite_results.put(table, table), (*own, *msgspec.structs.astuple(dump.origin), *kept))


_STATE = "move"
_RESTORING = "restoring"  # exists only within the transaction of a restore
_UNLESS_RESTORING = "WHEN NOT EXISTS (SELECT 1 FROM meta WHERE name = 'restoring')"
_PREFIX = "moved_"
UNDER_WAY = load("under_way")
MOVE_TRIGGERS = load("move_triggers")
DROP_META = load("drop_meta")


def freeze(tx: Tx, state: MoveState | None) -> int:
    if state is None:
        _thaw(tx)
        tx.connection.execute(DROP_META, (_STATE,))
        return 0
    refuse_freezing(moving(tx.connection), state)
    left: int = tx.value(UNDER_WAY) if state.kind == SEALED else 0
    if not left:
        keep(tx, state)
    return left


def keep(tx: Tx, state: MoveState) -> None:
    """Store the transfer state, and close the queue as far as that requires."""
    before = moving(tx.connection)
    tx.connection.execute(access.SAVE_META, (_STATE, msgspec.json.encode(state).decode()))
    if is_as_closed(before, state):
        return  # already closed as far as required
    _thaw(tx)
    if state.role == INTO:
        if not state.done:
            _seal(tx, state, _UNLESS_RESTORING)
    elif state.kind == SEALED:
        _seal(tx, state, "")
    else:
        # Children of running jobs are still accepted, and nothing else.
        _forbid(tx, "job", "INSERT", state, "WHEN new.parent_job_id IS NULL")
        _forbid(tx, "running", "INSERT", state, "")


def moving(connection: apsw.Connection) -> MoveState | None:
    text = sqlite_connection.value(connection, access.META, (_STATE,))
    return None if text is None else msgspec.json.decode(text, type=MoveState)


@contextlib.contextmanager
def restoring(tx: Tx) -> Iterator[None]:
    """Allow writes to the target of a transfer inside this context. An error rolls the whole transaction back."""
    tx.connection.execute(access.SAVE_META, (_RESTORING, ""))
    yield
    tx.connection.execute(DROP_META, (_RESTORING,))


def _seal(tx: Tx, state: MoveState, when: str) -> None:
    tx.arrivals.count()  # what is exported are the counters
    results = [f"result_{table.name}" for table in sqlite_results.result_tables(tx.connection)]
    for table in (*sql_rows.PLACED_TABLES, *results):
        for change in ("INSERT", "UPDATE", "DELETE"):
            _forbid(tx, table, change, state, when)


def _forbid(tx: Tx, table: str, change: str, state: MoveState, when: str) -> None:
    name = sqlite_results.quoted(f"{_PREFIX}{table}_{change.lower()}")
    says = (MOVED + refusal(state)).replace("'", "''")
    tx.connection.execute(
        f"CREATE TRIGGER {name} BEFORE {change} ON {sqlite_results.quoted(table)} {when}"
        f" BEGIN SELECT RAISE(ABORT, '{says}'); END"
    )


def _thaw(tx: Tx) -> None:
    for (name,) in tx.rows(MOVE_TRIGGERS, (_PREFIX,)):
        tx.connection.execute(f"DROP TRIGGER {sqlite_results.quoted(name)}")


_JOBS = load("export_jobs")
_EDGES = load("edges_from")
_STEPS = load("export_steps")
_OUTPUT = load("export_output")
_MAILBOXES = load("export_mailboxes")
_RESTORE_MAILBOX = load("restore_mailbox")
_ARCHIVE = load("export_archive")
_GUARDS = load("export_guards")
_COUNTERS = load("export_counters")
_SUMS = load("export_totals")
_TRAIL = load("export_audit")
_RESTORE_JOB = load("insert_special")
_KNOWN = load("known")
_KNOWN_ANYWHERE = load("known_anywhere")
_RESTORE_CHILDREN = load("restore_children")
_RESTORE_EDGE = load("restore_edge")
_RESTORE_STEP = load("restore_step")
_RESTORE_OUTPUT = load("restore_output")
_RESTORE_ARCHIVE = load("restore_archive")
_RESTORE_GUARD = load("restore_guard")
_RESTORE_COUNTER = load("restore_counter")
_RESTORE_SUM = load("restore_sum")
_RESTORE_QUEUE = load("restore_queue")
_RESTORE_LIMIT = load("restore_limit")

Source = Iterator[tuple[Dump, str]]  # each with the cursor behind it


# Export


def export(connection: apsw.Connection, kind: str, after: str | None, limit: int) -> Exported:
    """Return a page of an export. A page is also limited by size: `limit` large jobs would not fit into memory."""
    items: list[bytes] = []
    size, cursor = 0, None
    for dump, place in _SOURCES[kind](connection, after, limit + 1):
        if len(items) == limit or size >= MOVE_PAGE_BYTES_MAX:
            return Exported(tuple(items), cursor)
        items.append(dumps.packed(dump))
        size, cursor = size + len(items[-1]), place
    return Exported(tuple(items))


def _rows(connection: apsw.Connection, statement: str, bindings: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield rows one by one: a page may end before the statement does."""
    yield from connection.execute(statement, tuple(bindings))


def _whole(found: Iterable[Dump], after: str | None) -> Source:
    """Return a page of a small kind, with positions as cursors."""
    for number, dump in enumerate(found):
        if number >= int(after or 0):
            yield dump, str(number + 1)


def _jobs(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for row in _rows(connection, _JOBS, (int(after or 0), limit)):
        fields = dict(zip(RECORD_COLUMNS, row, strict=True))
        seq = fields["key"]
        edges = sqlite_connection.rows(connection, _EDGES, (fields["job_id"],))
        events = read.events_of(connection, [seq]).get(seq, ()) if fields["stored"] else ()
        yield sql_rows.dump_from(fields, events, edges), str(seq)


def _steps(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for row in _rows(connection, _STEPS, (*sql_rows.position(after, ("", "", "")), limit)):
        step = StepDump(*row)
        yield step, sql_rows.cursor(step.job_id, step.kind, step.name)


def _mailboxes(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for row in _rows(connection, _MAILBOXES, (after or "", limit)):
        box = MailboxDump(*row)
        yield box, box.event_key


def _output(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for row in _rows(connection, _OUTPUT, (*sql_rows.position(after, ("", 0, 0, 0)), limit)):
        part = OutputDump(*row)
        yield part, sql_rows.cursor(part.job_id, part.attempt, part.take, part.last)


def _archive(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for job_id, *rest in _rows(connection, _ARCHIVE, (after or "", limit)):
        yield sql_rows.archived(*rest), job_id


def _guards(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for row in _rows(connection, _GUARDS, (after or "", limit)):
        guard = GuardDump(*row)
        yield guard, guard.dedup_key


def _counters(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for row in _rows(connection, _COUNTERS, (*sql_rows.position(after, (-1, "", "", 0, "")), limit)):
        yield sql_rows.counter(*row), sql_rows.cursor(*row[:5])


def _totals(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    until = access.until(connection)
    for row in _rows(connection, _SUMS, (*sql_rows.position(after, ("", "", "")), limit)):
        yield TotalDump(sql_rows.total(*row), until), sql_rows.cursor(*row[:3])


def _trail(connection: apsw.Connection, after: str | None, limit: int) -> Source:
    for row in _rows(connection, _TRAIL, (after or "", limit)):
        entry = sql_rows.entry(row)
        yield entry, entry.entry_id


_SOURCES: dict[str, Callable[[apsw.Connection, str | None, int], Source]] = {
    dumps.TYPES: lambda c, after, _: _whole(read.job_types(c), after),
    dumps.QUEUES: lambda c, after, _: _whole(read.queues(c), after),
    dumps.LIMITS: lambda c, after, _: _whole(read.limits(c), after),
    dumps.SCHEDULES: lambda c, after, _: _whole(maintenance.schedules(c, ()), after),
    dumps.DECLARATIONS: lambda c, after, _: _whole(maintenance.declarations(c), after),
    dumps.TABLES: lambda c, after, _: _whole(sqlite_results.result_tables(c), after),
    dumps.JOBS: _jobs,
    dumps.STEPS: _steps,
    dumps.OUTPUT: _output,
    dumps.MAILBOXES: _mailboxes,
    dumps.ARCHIVE: _archive,
    dumps.GUARDS: _guards,
    dumps.COUNTERS: _counters,
    dumps.TOTALS: _totals,
    dumps.KEYS: lambda c, after, _: _whole(access.keys(c, ()), after),
    dumps.AUDIT: _trail,
    dumps.ROWS: export_rows,
}


# Restore


def restore(tx: Tx, kind: str, items: Sequence[bytes], state: MoveState) -> None:
    refuse_other(moving(tx.connection), state)
    if items:
        with restoring(tx):
            _RESTORES[kind](tx, items)
    keep(tx, state)


def _restore_jobs(tx: Tx, items: Sequence[bytes]) -> None:
    jobs = dumps.all_unpacked(dumps.JOBS, items, JobDump)
    ids = msgspec.json.encode([job.record.job_id for job in jobs]).decode()
    known = {job_id for (job_id,) in tx.rows(_KNOWN, (ids,))}  # by an earlier try
    tx.arrivals.count()
    for job in jobs:
        if job.record.job_id not in known:
            _restore_job(tx, sql_rows.restored(job, tx.arrivals.take_seqs(1)))
    tx.arrivals.count()  # that is, do not: the counters of their origin are restored by themselves
    edges = ((job.record.job_id, *msgspec.structs.astuple(edge)) for job in jobs for edge in job.edges)
    tx.connection.executemany(_RESTORE_EDGE, edges)


def adopt(tx: Tx, jobs: Sequence[Adopted], now: Instant) -> list[Verdict]:
    ids = msgspec.json.encode([job.job_id for job in jobs]).decode()
    known = {job_id for (job_id,) in tx.rows(_KNOWN_ANYWHERE, (ids,))}
    tx.arrivals.count()
    verdicts = [_adopt(tx, job, known, now) for job in jobs]
    tx.arrivals.count()  # that is, do not: they were not submitted here
    return verdicts


def _adopt(tx: Tx, job: Adopted, known: set[str], now: Instant) -> Verdict:
    record, guard = job.job.record, job.guard
    if job.job_id in known:
        return Verdict.STALE
    has_key = guard is not None and insert.living_target(tx, guard.dedup_key, now) is None
    if guard is not None and not has_key and record.status in ACTIVE:
        return Verdict.TAKEN
    known.add(job.job_id)
    _restore_job(tx, sql_rows.restored(job.job, tx.arrivals.take_seqs(1)))
    edges = ((job.job_id, *msgspec.structs.astuple(edge)) for edge in job.job.edges)
    tx.connection.executemany(_RESTORE_EDGE, edges)
    if guard is not None and has_key:
        insert.guard(tx, guard.dedup_key, job.job_id, guard.until)
    tx.signals |= sql_rows.entered(record.status)
    return Verdict.APPLIED


def _restore_job(tx: Tx, job: sql_rows.Restored) -> None:
    after = job.move.after
    tx.connection.execute(_RESTORE_JOB, {**job.facts, "seq": after.key})
    sqlite_places.enter(tx, after.place, job.move.place_row())
    tx.tally(after.kind, STORED, 1)
    if after.status in TALLIED:
        tx.tally(after.kind, after.status.value, 1)
    for event in job.events:
        sqlite_places.write_event(tx, after.key, event)
    if job.move.differs:
        tx.connection.execute(sqlite_places.WRITE_DETAIL, job.move.detail_row())
    if job.children:
        tx.connection.execute(_RESTORE_CHILDREN, {"seq": after.key, **job.children})


def _restore_archive(tx: Tx, items: Sequence[bytes]) -> None:
    tx.connection.executemany(
        _RESTORE_ARCHIVE,
        (
            (
                dump.record.job_id,
                dump.record.archived_at,
                dump.record.status.value,
                dump.has_files,
                sql_rows.archived_details(dump),
            )
            for dump in dumps.all_unpacked(dumps.ARCHIVE, items, ArchiveDump)
        ),
    )


def _restore_types(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.TYPES, items, JobType)
    tx.connection.executemany(
        maintenance.SAVE_TYPE, ((each.job_type, msgspec.json.encode(each).decode()) for each in found)
    )


def _restore_schedules(tx: Tx, items: Sequence[bytes]) -> None:
    for schedule in dumps.all_unpacked(dumps.SCHEDULES, items, Schedule):
        if not maintenance.schedules(tx.connection, [schedule.name]):
            tx.connection.execute(maintenance.SAVE, {**msgspec.structs.asdict(schedule), "expected": None})


def _restore_declarations(tx: Tx, items: Sequence[bytes]) -> None:
    for declaration in dumps.all_unpacked(dumps.DECLARATIONS, items, Declaration):
        maintenance.save_declaration(tx, declaration, None)  # one that is there is this one, of an earlier try


def _restore_counters(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.COUNTERS, items, Counter)
    tx.connection.executemany(_RESTORE_COUNTER, (row for each in found for row in sql_rows.counter_rows(each)))


def _restore_totals(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.TOTALS, items, TotalDump)
    tx.connection.executemany(_RESTORE_SUM, (row for each in found for row in sql_rows.total_rows(each.total)))
    access.keep_until(tx, found[0].until)


def _restore_keys(tx: Tx, items: Sequence[bytes]) -> None:
    for key in dumps.all_unpacked(dumps.KEYS, items, ApiKey):
        access.save_key(tx, key, new=False)


def _restore_rows(kind: str, statement: str, expected: type[Any]) -> Callable[[Tx, Sequence[bytes]], None]:
    """Restore kinds that are stored in the form in which they are exported."""

    def run(tx: Tx, items: Sequence[bytes]) -> None:
        found = dumps.all_unpacked(kind, items, expected)
        tx.connection.executemany(statement, (msgspec.structs.astuple(each) for each in found))

    return run


def _declare(tx: Tx, items: Sequence[bytes]) -> None:
    sqlite_results.declare(tx, dumps.all_unpacked(dumps.TABLES, items, ResultTable))


_RESTORES: dict[str, Callable[[Tx, Sequence[bytes]], None]] = {
    dumps.TYPES: _restore_types,
    dumps.QUEUES: _restore_rows(dumps.QUEUES, _RESTORE_QUEUE, QueueRow),
    dumps.LIMITS: _restore_rows(dumps.LIMITS, _RESTORE_LIMIT, LimitRow),
    dumps.SCHEDULES: _restore_schedules,
    dumps.DECLARATIONS: _restore_declarations,
    dumps.TABLES: _declare,
    dumps.JOBS: _restore_jobs,
    dumps.STEPS: _restore_rows(dumps.STEPS, _RESTORE_STEP, StepDump),
    dumps.OUTPUT: _restore_rows(dumps.OUTPUT, _RESTORE_OUTPUT, OutputDump),
    dumps.MAILBOXES: _restore_rows(dumps.MAILBOXES, _RESTORE_MAILBOX, MailboxDump),
    dumps.ARCHIVE: _restore_archive,
    dumps.GUARDS: _restore_rows(dumps.GUARDS, _RESTORE_GUARD, GuardDump),
    dumps.COUNTERS: _restore_counters,
    dumps.TOTALS: _restore_totals,
    dumps.KEYS: _restore_keys,
    dumps.AUDIT: _restore_rows(dumps.AUDIT, access.AUDIT, AuditEntry),
    dumps.ROWS: restore_rows,
}

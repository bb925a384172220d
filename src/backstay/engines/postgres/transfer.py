"""Transfer of a queue from or to PostgreSQL: freeze, export page by page, and restore as it was.

A queue in transfer is protected from changes by triggers. Creating one waits for every transaction that writes the
table, so that afterwards none is under way; a queue that is not in transfer pays nothing for them. All rows of a result
table are transferred, of every attempt.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import asyncpg
import msgspec

from backstay import ids
from backstay.clock import Instant, to_datetime
from backstay.core import dumps, records, result_tables
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
from backstay.core.records import ApiKey, AuditEntry, Declaration, JobType, LimitRow, QueueRow, Schedule, Verdict
from backstay.core.result_tables import ResultTable
from backstay.core.states import ACTIVE, TERMINAL
from backstay.engines import sql_rows
from backstay.engines.places import FACTS
from backstay.engines.postgres import access, maintenance, read, results
from backstay.engines.postgres import places as postgres_places
from backstay.engines.postgres.connection import Tx
from backstay.engines.sql_rows import Source, export_page, whole
from backstay.errors import ConfigurationError

SOME = 50  # rows read at once: even the largest fit into memory


async def export_rows(tx: Tx, after: str | None, limit: int) -> AsyncIterator[tuple[Dump, str]]:
    begun_with, *place = sql_rows.position(after, ("",))
    for table in sorted(await results.result_tables(tx), key=lambda each: each.name):
        if table.name < begun_with:
            continue
        if table.name > begun_with:
            place = []
        async for dump in _of_table(tx, table, place, limit):
            yield dump, sql_rows.cursor(table.name, dump.job_id, dump.values[result_tables.key_position(table)])


async def _of_table(tx: Tx, table: ResultTable, place: Sequence[Any], limit: int) -> AsyncIterator[RowDump]:
    while limit > 0:
        found = await tx.connection.fetch(_everything(tx, table, bool(place)), min(SOME, limit), *place)
        for row in found:
            stored = results.row_of(table.columns, tuple(row)[2:])
            place = (stored.job_id, stored.values[result_tables.key_position(table)])
            yield RowDump.of(table.name, row[0], row[1], stored)
        if len(found) < min(SOME, limit):
            return
        limit -= len(found)


def _everything(tx: Tx, table: ResultTable, begun: bool) -> str:
    """Return the statement for a page by job and key. Index: the table's primary key."""
    order = f"r.job_id, r.{results.quoted(table.key)}"
    after = f" WHERE ({order}) > ($2, $3)" if begun else ""
    name = results.name_of(tx.sql.schema, table.name)
    return (
        f"SELECT r.bs_attempt, r.bs_part, {results.selected(table.columns)}"  # noqa: S608
        f" FROM {name} AS r{after} ORDER BY {order} LIMIT $1::integer"
    )


async def restore_rows(tx: Tx, items: Sequence[bytes]) -> None:
    known = {table.name: table for table in await results.result_tables(tx)}
    for together, group in groupby(dumps.all_unpacked(dumps.ROWS, items, RowDump), _put_together):
        table = known[together[0]]
        columns = [
            [results.sent(column.kind, value) for value in values]
            for column, values in zip(table.columns, zip(*(dump.values for dump in group), strict=True), strict=True)
        ]
        _, job_id, attempt, part, created_at, origin = together
        own = (job_id, attempt, part, to_datetime(created_at), *msgspec.structs.astuple(origin))
        await tx.connection.execute(results.put(tx.sql.schema, table, table), *own, *columns)


def _put_together(dump: RowDump) -> tuple[Any, ...]:
    return dump.table, dump.job_id, dump.attempt, dump.part, dump.created_at, dump.origin


_PREFIX = "moved_"
_ALL = "INSERT OR UPDATE OR DELETE"


async def freeze(tx: Tx, state: MoveState | None) -> int:
    try:
        return await _freeze(tx, state)
    except asyncpg.InsufficientPrivilegeError as error:
        raise ConfigurationError(
            f'this role is not allowed to create triggers on the tables of "{tx.sql.schema}" ({error}):'
            " transfer the queue as the role that owns them, which is the one that created or migrated it"
        ) from None


async def _freeze(tx: Tx, state: MoveState | None) -> int:
    if state is None:
        await _thaw(tx)
        await tx.execute("move_forget")
        return 0
    refuse_freezing(await held(tx), state)
    if state.kind == SEALED:
        await tx.execute("move_lock")  # none can begin while we count
        if left := int(await tx.value("under_way")):
            return left
    await keep(tx, state)
    return 0


async def keep(tx: Tx, state: MoveState) -> None:
    """Store the transfer state, and close the queue as far as that requires."""
    before = await moving(tx)
    await tx.execute("move_save", msgspec.json.encode(state).decode())
    if is_as_closed(before, state):
        return  # already closed as far as required
    await _thaw(tx)
    if state.role == INTO:
        if not state.done:
            await _seal(tx, state)
    elif state.kind == SEALED:
        await _seal(tx, state)
    else:
        # Children of running jobs are still accepted, and nothing else.
        await _forbid(tx, "job", "INSERT", state, "FOR EACH ROW WHEN (NEW.parent_job_id IS NULL)")
        await _forbid(tx, "running", "INSERT", state, "FOR EACH ROW")


async def moving(tx: Tx) -> MoveState | None:
    text = await tx.value("move_state")
    return None if text is None else msgspec.json.decode(text, type=MoveState)


async def held(tx: Tx) -> MoveState | None:
    """Return the transfer state, locked against other runs until the end of this transaction."""
    await tx.execute("lock_names", [f"backstay move {tx.sql.schema}"])
    return await moving(tx)


async def _seal(tx: Tx, state: MoveState) -> None:
    await access.add_up(tx, sql_rows.EVERYTHING)  # of submits, what is exported are the counters
    results = await tx.column("result_names")
    for table in (*sql_rows.PLACED_TABLES, "event_due", *(f"result_{name}" for name in results)):
        await _forbid(tx, table, _ALL, state, "FOR EACH STATEMENT")


async def _forbid(tx: Tx, table: str, change: str, state: MoveState, when: str) -> None:
    schema = tx.sql.schema
    name = f"{_PREFIX}{change.split()[0].lower()}"
    says = refusal(state).replace("'", "''")
    await tx.connection.execute(
        f'CREATE TRIGGER "{name}" BEFORE {change} ON "{schema}"."{table}" {when}'
        f" EXECUTE FUNCTION \"{schema}\".refuse_moved('{says}')"
    )


async def _thaw(tx: Tx) -> None:
    schema = tx.sql.schema
    for trigger, table in await tx.rows("move_triggers", schema, _PREFIX):
        await tx.connection.execute(f'DROP TRIGGER "{trigger}" ON "{schema}"."{table}"')


SOME = 50  # jobs read at once: even the largest fit into memory
_FIRST_ID = "00000000-0000-0000-0000-000000000000"
CLOCKS_APART_MILLIS = 5_000


# Export


async def export(tx: Tx, kind: str, after: str | None, limit: int) -> Exported:
    return await export_page(_SOURCES[kind](tx, after, limit + 1), limit)


async def _jobs(tx: Tx, after: str | None, limit: int) -> Source:
    place = after or _FIRST_ID
    while limit > 0:
        found = await tx.rows("export_jobs", place, min(SOME, limit))
        edges: dict[str, list[tuple[str, bool, bool]]] = {}
        jobs = [(*read.fields_of(tuple(columns)), place) for *columns, place in found]
        for child, *edge in await tx.rows("export_edges", [fields["job_id"] for fields, _, _ in jobs]):
            edges.setdefault(child, []).append((edge[0], edge[1], edge[2]))
        for fields, events, place in jobs:
            yield sql_rows.dump_from(fields, events, edges.get(fields["job_id"], ())), place
        if len(found) < min(SOME, limit):
            return
        limit -= len(found)


async def _steps(tx: Tx, after: str | None, limit: int) -> Source:
    for row in await tx.rows("export_steps", *sql_rows.position(after, (_FIRST_ID, "", "")), limit):
        step = StepDump(*row)
        yield step, sql_rows.cursor(step.job_id, step.kind, step.name)


async def _mailboxes(tx: Tx, after: str | None, limit: int) -> Source:
    for row in await tx.rows("export_mailboxes", after or "", limit):
        box = MailboxDump(*row)
        yield box, box.event_key


async def _output(tx: Tx, after: str | None, limit: int) -> Source:
    for row in await tx.rows("export_output", *sql_rows.position(after, (_FIRST_ID, 0, 0, 0)), limit):
        part = OutputDump(*row)
        yield part, sql_rows.cursor(part.job_id, part.attempt, part.take, part.last)


async def _archive(tx: Tx, after: str | None, limit: int) -> Source:
    for job_id, *rest in await tx.rows("export_archive", after or _FIRST_ID, limit):
        yield sql_rows.archived(*rest), job_id


async def _guards(tx: Tx, after: str | None, limit: int) -> Source:
    for row in await tx.rows("export_guards", after or "", limit):
        guard = GuardDump(*row)
        yield guard, guard.dedup_key


async def _counters(tx: Tx, after: str | None, limit: int) -> Source:
    if after is None and await moving(tx) is None:
        await access.add_up(tx, sql_rows.EVERYTHING)  # as `_seal` does
    for row in await tx.rows("export_counters", *sql_rows.position(after, (-1, "", "", 0, "")), limit):
        yield sql_rows.counter(*row), sql_rows.cursor(*tuple(row)[:5])


async def _totals(tx: Tx, after: str | None, limit: int) -> Source:
    for *total, until in await tx.rows("export_totals", *sql_rows.position(after, ("", "", "")), limit):
        yield TotalDump(sql_rows.total(*total), until), sql_rows.cursor(*total[:3])


async def _trail(tx: Tx, after: str | None, limit: int) -> Source:
    for row in await tx.rows("export_audit", after or "", limit):
        entry = sql_rows.entry(row)
        yield entry, entry.entry_id


_SOURCES: dict[str, Callable[[Tx, str | None, int], Source]] = {
    dumps.TYPES: lambda tx, after, _: whole(read.job_types(tx), after),
    dumps.QUEUES: lambda tx, after, _: whole(read.queues(tx), after),
    dumps.LIMITS: lambda tx, after, _: whole(read.limits(tx), after),
    dumps.SCHEDULES: lambda tx, after, _: whole(maintenance.schedules(tx, ()), after),
    dumps.DECLARATIONS: lambda tx, after, _: whole(maintenance.declarations(tx), after),
    dumps.TABLES: lambda tx, after, _: whole(results.result_tables(tx), after),
    dumps.JOBS: _jobs,
    dumps.STEPS: _steps,
    dumps.OUTPUT: _output,
    dumps.MAILBOXES: _mailboxes,
    dumps.ARCHIVE: _archive,
    dumps.GUARDS: _guards,
    dumps.COUNTERS: _counters,
    dumps.TOTALS: _totals,
    dumps.KEYS: lambda tx, after, _: whole(access.keys(tx, ()), after),
    dumps.AUDIT: _trail,
    dumps.ROWS: export_rows,
}


# Restore


async def restore(tx: Tx, kind: str, items: Sequence[bytes], state: MoveState) -> None:
    refuse_other(await held(tx), state)
    if items:
        await tx.execute("restoring")
        await _RESTORES[kind](tx, items)
    await keep(tx, state)


async def _restore_jobs(tx: Tx, items: Sequence[bytes]) -> None:
    """Restore jobs; if an interrupted try has already stored some of them, only the missing ones."""
    dumped = dumps.all_unpacked(dumps.JOBS, items, JobDump)
    there = set(await tx.column("restored_before", [dump.record.job_id for dump in dumped]))
    await _write_jobs(tx, [dump for dump in dumped if dump.record.job_id not in there])
    await _write_edges(tx, dumped)


async def adopt(tx: Tx, jobs: Sequence[Adopted], now: Instant) -> list[Verdict]:
    await tx.execute("lock_names", [f"backstay adopt {tx.sql.schema}"])  # two imports may bring the same jobs
    known = set(await tx.column("known_anywhere", [job.job_id for job in jobs]))
    living = await _living(tx, [job.guard.dedup_key for job in jobs if job.guard is not None], now)
    verdicts: list[Verdict] = []
    new: list[Adopted] = []
    given: list[GuardDump] = []
    for job in jobs:
        taken = job.guard is not None and job.guard.dedup_key in living
        if job.job_id in known:
            verdicts.append(Verdict.STALE)
        elif taken and job.job.record.status in ACTIVE:
            verdicts.append(Verdict.TAKEN)
        else:
            known.add(job.job_id)
            if job.guard is not None and not taken:
                living.add(job.guard.dedup_key)
                given.append(job.guard)
            new.append(job)
            verdicts.append(Verdict.APPLIED)
    await _write_jobs(tx, [job.job for job in new])
    await _write_edges(tx, [job.job for job in new])
    await _many(tx, "give_key", [msgspec.structs.astuple(guard) for guard in given])
    for job in new:
        tx.signals |= sql_rows.entered(job.job.record.status)
    return verdicts


async def _living(tx: Tx, keys: Sequence[str], now: Instant) -> set[str]:
    """Return which of these dedup keys belong to a job."""
    if not keys:
        return set()
    found = await tx.rows("keys_taken", keys)
    statuses = await read.statuses(tx, [job_id for _, job_id, _ in found])
    return {
        key
        for (key, _, until), status in zip(found, statuses, strict=True)
        if status is not None and (status not in TERMINAL if until is None else now < until)
    }


async def _write_jobs(tx: Tx, missing: Sequence[JobDump]) -> None:
    jobs = [sql_rows.restored(dump, dump.record.job_id) for dump in missing]
    arrivals = _arrivals(jobs, await _arrived(tx, jobs))
    await tx.connection.copy_records_to_table(
        "job",
        schema_name=tx.sql.schema,
        columns=(*FACTS, "arrival"),
        records=[(*(job.facts[name] for name in FACTS), place) for job, place in zip(jobs, arrivals, strict=True)],
    )
    await postgres_places.restore(tx, jobs)


async def _write_edges(tx: Tx, dumped: Sequence[JobDump]) -> None:
    edges = [(dump.record.job_id, *msgspec.structs.astuple(edge)) for dump in dumped for edge in dump.edges]
    await _many(tx, "restore_edges", edges)


async def _arrived(tx: Tx, jobs: Sequence[sql_rows.Restored]) -> Counter[int]:
    """Return how many jobs earlier pages have put into the milliseconds of these, by their arrival."""
    millis = sorted({at for job in jobs if (at := _apart(job)) is not None})
    bounds = [[ids.floor(1000 * (at + more)) for at in millis] for more in (0, 1)]
    return Counter(dict(zip(millis, await tx.column("arrived", *bounds), strict=True))) if millis else Counter()


def _apart(job: sql_rows.Restored) -> int | None:
    """Return the millisecond in which a job arrived, if its id tells another time."""
    job_id, at = str(job.facts["job_id"]), int(job.facts["created_at"]) // 1000
    apart = 0 if job.facts["parent_job_id"] is not None else CLOCKS_APART_MILLIS
    tells_it = job_id[14] == "7" and abs(int(job_id[:8] + job_id[9:13], 16) - at) <= apart
    return None if tells_it else at


def _arrivals(jobs: Sequence[sql_rows.Restored], before: Counter[int]) -> Iterator[str | None]:
    """Yield each job's place among the ids, if its own tells another time: as backstay.arrival does. Those of a
    millisecond keep the order in which they come, after those of pages before."""
    together = before.copy()
    for job in jobs:
        if (at := _apart(job)) is None:
            yield None
            continue
        together[at] += 1
        tail = hashlib.md5(str(job.facts["job_id"]).encode(), usedforsecurity=False).hexdigest()[-16:]
        yield str(uuid.UUID(f"{at:012x}7{min(together[at], 4095):03x}{tail}"))


async def _restore_archive(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.ARCHIVE, items, ArchiveDump)
    await _many(
        tx,
        "restore_archive",
        [
            (
                dump.record.job_id,
                dump.record.archived_at,
                dump.record.status.value,
                dump.has_files,
                sql_rows.archived_details(dump),
            )
            for dump in found
        ],
    )


async def _restore_types(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.TYPES, items, JobType)
    details = [msgspec.json.encode(each).decode() for each in found]
    await tx.execute("save_types", [each.job_type for each in found], details)


async def _restore_declarations(tx: Tx, items: Sequence[bytes]) -> None:
    for declaration in dumps.all_unpacked(dumps.DECLARATIONS, items, Declaration):
        await maintenance.save_declaration(tx, declaration, None, repeat=True)


async def _restore_counters(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.COUNTERS, items, records.Counter)
    await _many(tx, "restore_counters", [row for each in found for row in sql_rows.counter_rows(each)])


async def _restore_totals(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.TOTALS, items, TotalDump)
    await _many(tx, "restore_totals", [row for each in found for row in sql_rows.total_rows(each.total)])
    await access.keep_until(tx, found[0].until)


async def _restore_keys(tx: Tx, items: Sequence[bytes]) -> None:
    for key in dumps.all_unpacked(dumps.KEYS, items, ApiKey):
        await access.save_key(tx, key, new=False)


async def _restore_trail(tx: Tx, items: Sequence[bytes]) -> None:
    await access.audit(tx, dumps.all_unpacked(dumps.AUDIT, items, AuditEntry))


def _restore_rows(kind: str, expected: type[Any]) -> Callable[[Tx, Sequence[bytes]], Awaitable[None]]:
    """Restore kinds that are stored in the form in which they are exported."""

    async def run(tx: Tx, items: Sequence[bytes]) -> None:
        found = dumps.all_unpacked(kind, items, expected)
        await _many(tx, f"restore_{kind}", [msgspec.structs.astuple(each) for each in found])

    return run


async def _many(tx: Tx, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
    await tx.connection.executemany(tx.sql[name], rows)


async def _declare(tx: Tx, items: Sequence[bytes]) -> None:
    await results.declare(tx, dumps.all_unpacked(dumps.TABLES, items, ResultTable))


_RESTORES: dict[str, Callable[[Tx, Sequence[bytes]], Awaitable[None]]] = {
    dumps.TYPES: _restore_types,
    dumps.QUEUES: _restore_rows(dumps.QUEUES, QueueRow),
    dumps.LIMITS: _restore_rows(dumps.LIMITS, LimitRow),
    dumps.SCHEDULES: _restore_rows(dumps.SCHEDULES, Schedule),
    dumps.DECLARATIONS: _restore_declarations,
    dumps.TABLES: _declare,
    dumps.JOBS: _restore_jobs,
    dumps.STEPS: _restore_rows(dumps.STEPS, StepDump),
    dumps.OUTPUT: _restore_rows(dumps.OUTPUT, OutputDump),
    dumps.MAILBOXES: _restore_rows(dumps.MAILBOXES, MailboxDump),
    dumps.ARCHIVE: _restore_archive,
    dumps.GUARDS: _restore_rows(dumps.GUARDS, GuardDump),
    dumps.COUNTERS: _restore_counters,
    dumps.TOTALS: _restore_totals,
    dumps.KEYS: _restore_keys,
    dumps.AUDIT: _restore_trail,
    dumps.ROWS: restore_rows,
}

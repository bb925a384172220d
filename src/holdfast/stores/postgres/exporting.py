"""A queue that moves: read out whole, a page at a time, and written as it was."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from holdfast.store import dumps
from holdfast.store.dumps import ArchiveDump, GuardDump, JobDump, StepDump, TotalDump
from holdfast.store.moves import Exported, MoveState, refuse_other
from holdfast.store.tables import ResultTable
from holdfast.store.types import ApiKey, AuditEntry, Counter, JobType, QueueRow, Schedule
from holdfast.stores import access_rows, dumping, records
from holdfast.stores.export_pages import Source, page, whole
from holdfast.stores.postgres import access, exporting_rows, freezing, reading, tables, totalling, upkeep
from holdfast.stores.postgres.freezing import freeze as freeze
from holdfast.stores.postgres.freezing import moving as moving
from holdfast.stores.postgres.tx import Tx

SOME = 50  # jobs that are read at once: of the largest there are, what fits into memory
_FIRST_ID = "00000000-0000-0000-0000-000000000000"
_BESIDE = ", ".join("joins::text" if name == "joins" else name for name in dumping.BESIDE)


# Reading out


async def export(tx: Tx, kind: str, after: str | None, limit: int) -> Exported:
    return await page(_SOURCES[kind](tx, after, limit + 1), limit)


async def _jobs(tx: Tx, after: str | None, limit: int) -> Source:
    select, _, source = tx.sql["get"].partition("FROM ")
    table = source.partition("WHERE ")[0]
    statement = f"{select.rstrip()}, {_BESIDE}, seq FROM {table} WHERE seq > $1 ORDER BY seq LIMIT $2"
    seq = int(after or 0)
    while limit > 0:
        found = await tx.connection.fetch(statement, seq, min(SOME, limit))
        edges: dict[str, list[tuple[str, bool, bool]]] = {}
        for child, *edge in await tx.rows("export_edges", [row[0] for row in found]):
            edges.setdefault(child, []).append((edge[0], edge[1], edge[2]))
        for row in found:
            seq = row[-1]
            yield dumping.job(tuple(row)[:-1], edges.get(row[0], ())), str(seq)
        if len(found) < min(SOME, limit):
            return
        limit -= len(found)


async def _steps(tx: Tx, after: str | None, limit: int) -> Source:
    for row in await tx.rows("export_steps", *dumping.position(after, (_FIRST_ID, "")), limit):
        yield StepDump(*row), dumping.cursor(row[0], row[1])


async def _archive(tx: Tx, after: str | None, limit: int) -> Source:
    for job_id, *rest in await tx.rows("export_archive", after or _FIRST_ID, limit):
        yield dumping.archived(*rest), job_id


async def _guards(tx: Tx, after: str | None, limit: int) -> Source:
    for row in await tx.rows("export_guards", after or "", limit):
        yield GuardDump(*row), row[0]


async def _counters(tx: Tx, after: str | None, limit: int) -> Source:
    for row in await tx.rows("export_counters", *dumping.position(after, (-1, "", "", 0, "")), limit):
        yield records.counter(*row), dumping.cursor(*tuple(row)[:5])


async def _totals(tx: Tx, after: str | None, limit: int) -> Source:
    for *total, until in await tx.rows("export_totals", *dumping.position(after, ("", "", "")), limit):
        yield TotalDump(records.total(*total), until), dumping.cursor(*total[:3])


async def _trail(tx: Tx, after: str | None, limit: int) -> Source:
    for row in await tx.rows("export_audit", after or "", limit):
        yield access_rows.entry(row), row[0]


_SOURCES: dict[str, Callable[[Tx, str | None, int], Source]] = {
    dumps.TYPES: lambda tx, after, _: whole(reading.job_types(tx), after),
    dumps.QUEUES: lambda tx, after, _: whole(upkeep.queues(tx), after),
    dumps.SCHEDULES: lambda tx, after, _: whole(upkeep.schedules(tx, ()), after),
    dumps.TABLES: lambda tx, after, _: whole(tables.result_tables(tx), after),
    dumps.JOBS: _jobs,
    dumps.STEPS: _steps,
    dumps.ARCHIVE: _archive,
    dumps.GUARDS: _guards,
    dumps.COUNTERS: _counters,
    dumps.TOTALS: _totals,
    dumps.KEYS: lambda tx, after, _: whole(access.keys(tx, ()), after),
    dumps.AUDIT: _trail,
    dumps.ROWS: exporting_rows.export,
}


# Writing


async def restore(tx: Tx, kind: str, items: Sequence[bytes], state: MoveState) -> None:
    refuse_other(await freezing.held(tx), state)
    if items:
        await tx.execute("restoring")
        await _RESTORES[kind](tx, items)
    await freezing.keep(tx, state)


async def _restore_jobs(tx: Tx, items: Sequence[bytes]) -> None:
    """By COPY, unless a try that was interrupted has left some of them here: then those that are missing."""
    jobs = dumps.all_unpacked(dumps.JOBS, items, JobDump)
    columns, rows = dumping.JOB_COLUMNS, [dumping.job_values(job) for job in jobs]
    if await tx.value("present", [job.record.job_id for job in jobs]):
        places = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
        statement = f"INSERT INTO holdfast.job ({', '.join(columns)}) VALUES ({places}) ON CONFLICT (job_id) DO NOTHING"  # noqa: S608
        await tx.connection.executemany(tx.sql.named(statement), rows)
    else:
        await tx.connection.copy_records_to_table("job", schema_name=tx.sql.schema, columns=columns, records=rows)
    edges = [(job.record.job_id, *msgspec.structs.astuple(edge)) for job in jobs for edge in job.edges]
    await _many(tx, "restore_edges", edges)


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
                dumping.archived_details(dump),
            )
            for dump in found
        ],
    )


async def _restore_types(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.TYPES, items, JobType)
    details = [msgspec.json.encode(each).decode() for each in found]
    await tx.execute("announce", [each.job_type for each in found], details)


async def _restore_counters(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.COUNTERS, items, Counter)
    await _many(tx, "restore_counters", [row for each in found for row in records.counter_rows(each)])


async def _restore_totals(tx: Tx, items: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.TOTALS, items, TotalDump)
    await _many(tx, "restore_totals", [row for each in found for row in records.total_rows(each.total)])
    await totalling.keep_until(tx, found[0].until)


async def _restore_keys(tx: Tx, items: Sequence[bytes]) -> None:
    for key in dumps.all_unpacked(dumps.KEYS, items, ApiKey):
        await access.save_key(tx, key, new=False)


async def _restore_trail(tx: Tx, items: Sequence[bytes]) -> None:
    await access.audit(tx, dumps.all_unpacked(dumps.AUDIT, items, AuditEntry))


def _restore_rows(kind: str, expected: type[Any]) -> Callable[[Tx, Sequence[bytes]], Awaitable[None]]:
    """For what is stored as it travels."""

    async def run(tx: Tx, items: Sequence[bytes]) -> None:
        found = dumps.all_unpacked(kind, items, expected)
        await _many(tx, f"restore_{kind}", [msgspec.structs.astuple(each) for each in found])

    return run


async def _many(tx: Tx, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
    await tx.connection.executemany(tx.sql[name], rows)


async def _declare(tx: Tx, items: Sequence[bytes]) -> None:
    await tables.declare(tx, dumps.all_unpacked(dumps.TABLES, items, ResultTable))


_RESTORES: dict[str, Callable[[Tx, Sequence[bytes]], Awaitable[None]]] = {
    dumps.TYPES: _restore_types,
    dumps.QUEUES: _restore_rows(dumps.QUEUES, QueueRow),
    dumps.SCHEDULES: _restore_rows(dumps.SCHEDULES, Schedule),
    dumps.TABLES: _declare,
    dumps.JOBS: _restore_jobs,
    dumps.STEPS: _restore_rows(dumps.STEPS, StepDump),
    dumps.ARCHIVE: _restore_archive,
    dumps.GUARDS: _restore_rows(dumps.GUARDS, GuardDump),
    dumps.COUNTERS: _restore_counters,
    dumps.TOTALS: _restore_totals,
    dumps.KEYS: _restore_keys,
    dumps.AUDIT: _restore_trail,
    dumps.ROWS: exporting_rows.restore,
}

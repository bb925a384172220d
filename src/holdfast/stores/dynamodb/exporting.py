"""A queue that moves: read out whole, a page at a time, and written as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import msgspec

from holdfast.clock import Instant
from holdfast.errors import MoveFailed
from holdfast.store import dumps
from holdfast.store.dumps import ArchiveDump, GuardDump, StepDump, TotalDump
from holdfast.store.moves import Exported, MoveState, refuse_other
from holdfast.store.tables import ResultTable
from holdfast.store.types import ApiKey, AuditEntry, Counter, JobType, QueueRow, Schedule
from holdfast.stores import dumping
from holdfast.stores.dynamodb import (
    access,
    counting,
    exporting_jobs,
    exporting_rows,
    freezing,
    holding,
    items,
    keys,
    reading,
    scheduling,
    tables,
    totalling,
    trailing,
)
from holdfast.stores.dynamodb.counting import HOUR, CounterLane
from holdfast.stores.dynamodb.expressions import Condition, Placeholders, begins, present
from holdfast.stores.dynamodb.freezing import freeze as freeze
from holdfast.stores.dynamodb.freezing import moving as moving
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.table import Lane
from holdfast.stores.dynamodb.values import Item, decode, encode
from holdfast.stores.export_pages import Source, page, whole

SCANNED = 200  # items that one request looks through
_WRITER = "moved"  # of counters, which every store adds to under a name of its own


# Reading out


async def export(ground: Ground, kind: str, after: str | None, limit: int) -> Exported:
    return await page(_SOURCES[kind](ground, after, limit + 1), limit)


async def _scanned(ground: Ground, table: Table, where: Condition, after: str | None) -> AsyncIterator[Item]:
    """All items of a kind, in the order in which DynamoDB keeps them; consistent."""
    holders = Placeholders()
    body = {
        "TableName": ground.tables.names[table],
        "ConsistentRead": True,
        "Limit": SCANNED,
        "FilterExpression": holders.condition(where),
        **holders.attributes(),
    }
    if after is not None:
        body["ExclusiveStartKey"] = encode(msgspec.json.decode(after))
    while True:
        reply = await ground.tables.call("Scan", body, lane=Lane.IDLE)
        for wired in reply.get("Items", ()):
            yield decode(wired)
        if not reply.get("LastEvaluatedKey"):
            return
        body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"]}


def _place(item: Item) -> str:
    names = ("job_id",) if "pk" not in item else ("pk", "sk")
    return msgspec.json.encode({name: item[name] for name in names}).decode()


async def _archive(ground: Ground, after: str | None, _: int) -> Source:
    async for item in _scanned(ground, Table.JOBS, present("archived_at"), after):
        yield dumping.archived(item["ended"], item["archived_at"], "files" in item, item["details"]), _place(item)


async def _steps(ground: Ground, after: str | None, _: int) -> Source:
    async for item in _scanned(ground, Table.RECORDS, begins("pk", keys.steps("")), after):
        job_id = item["pk"].removeprefix(keys.steps(""))
        yield StepDump(job_id, item["name"], item["answer"], item["attempt"], item["recorded_at"]), _place(item)


async def _guards(ground: Ground, after: str | None, _: int) -> Source:
    async for item in _scanned(ground, Table.RECORDS, begins("pk", keys.guard("")[0]), after):
        yield GuardDump(item["key"], item["job_id"], item.get("until")), _place(item)


async def _counters(ground: Ground, after: str | None, _: int) -> Source:
    """Hour by hour: a month of them is much."""
    since, number = dumping.position(after, (0, -1))
    for hour in sorted({hour for hour, _ in await counting.hours(ground.tables, since // HOUR, keys.NO_TIME // HOUR)}):
        found = await counting.counters(ground.tables, max(since, hour * HOUR), (hour + 1) * HOUR)
        places: dict[Instant, int] = {}
        for counter in found:
            place = places[counter.minute] = places.get(counter.minute, -1) + 1
            if (counter.minute, place) > (since, number):
                yield counter, dumping.cursor(counter.minute, place)


async def _trail(ground: Ground, after: str | None, _: int) -> Source:
    async for entry in trailing.entries(ground, after):
        yield entry, entry.entry_id


_SOURCES: dict[str, Callable[[Ground, str | None, int], Source]] = {
    dumps.TYPES: lambda ground, after, _: whole(reading.job_types(ground), after),
    dumps.QUEUES: lambda ground, after, _: whole(ground.board.queues(), after),
    dumps.SCHEDULES: lambda ground, after, _: whole(scheduling.schedules(ground, ()), after),
    dumps.TABLES: lambda ground, after, _: whole(tables.result_tables(ground), after),
    dumps.JOBS: exporting_jobs.export,
    dumps.STEPS: _steps,
    dumps.ARCHIVE: _archive,
    dumps.GUARDS: _guards,
    dumps.COUNTERS: _counters,
    dumps.TOTALS: lambda ground, after, _: whole(totalling.export(ground.tables), after),
    dumps.KEYS: lambda ground, after, _: whole(access.keys(ground, ()), after),
    dumps.AUDIT: _trail,
    dumps.ROWS: exporting_rows.export,
}


def fit(kind: str, item: bytes) -> bytes:
    return exporting_jobs.fit(item) if kind == dumps.JOBS else item


# Writing


async def restore(ground: Ground, kind: str, packed: Sequence[bytes], state: MoveState) -> None:
    """The items first, then how far that is: a death in between writes the same items again."""
    before = await freezing.stored(ground)
    refuse_other(freezing.state_of(before), state)
    if packed:
        await _RESTORES[kind](ground, packed)
    await freezing.keep(ground, state, before)


async def _restore_types(ground: Ground, packed: Sequence[bytes]) -> None:
    await reading.announce(ground, dumps.all_unpacked(dumps.TYPES, packed, JobType))


async def _restore_queues(ground: Ground, packed: Sequence[bytes]) -> None:
    made = []
    for row in dumps.all_unpacked(dumps.QUEUES, packed, QueueRow):
        pk, sk = keys.queue_row(row.name)
        made.append({"pk": pk, "sk": sk, "nonce": _WRITER, "wid": _WRITER, **msgspec.structs.asdict(row)})
    await ground.tables.put_many(Table.RECORDS, made)


async def _restore_schedules(ground: Ground, packed: Sequence[bytes]) -> None:
    made = []
    for schedule in dumps.all_unpacked(dumps.SCHEDULES, packed, Schedule):
        pk, sk = keys.schedule(schedule.name)
        made.append({**msgspec.structs.asdict(schedule), "pk": pk, "sk": sk, "wid": _WRITER})
    await ground.tables.put_many(Table.RECORDS, made)


async def _restore_archive(ground: Ground, packed: Sequence[bytes]) -> None:
    made = []
    for dump in dumps.all_unpacked(dumps.ARCHIVE, packed, ArchiveDump):
        record = dump.record
        item: Item = {
            "job_id": record.job_id,
            "archived_at": record.archived_at,
            "ended": record.status.value,
            "details": dumping.archived_details(dump),
            "wid": items.new_wid(),
            "dedup_key": record.dedup_key,
            "files": 1 if dump.has_files else None,
        }
        kept = {name: value for name, value in item.items() if value is not None}
        made.append({**kept, **keys.derived(kept, ground.shards)})
    await ground.tables.put_many(Table.JOBS, made)


async def _restore_steps(ground: Ground, packed: Sequence[bytes]) -> None:
    made = []
    for dump in dumps.all_unpacked(dumps.STEPS, packed, StepDump):
        if len(dump.answer.encode()) > holding.ANSWER_BYTES_MAX:
            raise MoveFailed(
                f"the answer of step {dump.name!r} of job {dump.job_id} has more than the"
                f" {holding.ANSWER_BYTES_MAX:,} bytes that DynamoDB keeps: end that job first, and purge it"
            )
        pk, sk = keys.step(dump.job_id, dump.name)
        fields = {"name": dump.name, "answer": dump.answer, "attempt": dump.attempt, "recorded_at": dump.recorded_at}
        made.append({"pk": pk, "sk": sk, **fields})
    await ground.tables.put_many(Table.RECORDS, made)


async def _restore_guards(ground: Ground, packed: Sequence[bytes]) -> None:
    made = []
    for dump in dumps.all_unpacked(dumps.GUARDS, packed, GuardDump):
        pk, sk = keys.guard(dump.dedup_key)
        fields = {"key": dump.dedup_key, "job_id": dump.job_id, "until": dump.until, "nonce": _WRITER}
        made.append({"pk": pk, "sk": sk, **fields})
    await ground.tables.put_many(Table.RECORDS, made)


async def _restore_counters(ground: Ground, packed: Sequence[bytes]) -> None:
    made: list[Item] = []
    for counter in dumps.all_unpacked(dumps.COUNTERS, packed, Counter):
        lane = CounterLane(_WRITER, 0, counter.minute)
        made.append(lane.hour_item())
        made.append(lane.item(counter))
    unique = {(item["pk"], item["sk"]): item for item in made}
    await ground.tables.put_many(Table.RECORDS, list(unique.values()))


async def _restore_totals(ground: Ground, packed: Sequence[bytes]) -> None:
    await totalling.restore(ground.tables, dumps.all_unpacked(dumps.TOTALS, packed, TotalDump))


async def _restore_keys(ground: Ground, packed: Sequence[bytes]) -> None:
    for key in dumps.all_unpacked(dumps.KEYS, packed, ApiKey):
        await access.save_key(ground, key, new=False)


async def _restore_trail(ground: Ground, packed: Sequence[bytes]) -> None:
    await trailing.audit(ground, dumps.all_unpacked(dumps.AUDIT, packed, AuditEntry))


async def _declare(ground: Ground, packed: Sequence[bytes]) -> None:
    await tables.declare(ground, dumps.all_unpacked(dumps.TABLES, packed, ResultTable))


_RESTORES: dict[str, Callable[[Ground, Sequence[bytes]], Awaitable[None]]] = {
    dumps.TYPES: _restore_types,
    dumps.QUEUES: _restore_queues,
    dumps.SCHEDULES: _restore_schedules,
    dumps.TABLES: _declare,
    dumps.JOBS: exporting_jobs.restore,
    dumps.STEPS: _restore_steps,
    dumps.ARCHIVE: _restore_archive,
    dumps.GUARDS: _restore_guards,
    dumps.COUNTERS: _restore_counters,
    dumps.TOTALS: _restore_totals,
    dumps.KEYS: _restore_keys,
    dumps.AUDIT: _restore_trail,
    dumps.ROWS: exporting_rows.restore,
}

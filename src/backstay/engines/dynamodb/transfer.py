"""Transfer of a queue from or to DynamoDB: freeze, export page by page, and restore as it was.

The transfer state is on the board, which each claim and each submit reads anyway. Between such a read and the commit
lies a moment, so a queue counts as still only once it has been frozen for longer than any call lasts. Jobs are read in
order of arrival from the status index, which may be behind, so at its end the export checks that it has shown all. All
rows of a result table are transferred, of every attempt.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core import dumps
from backstay.core.dumps import (
    SEALED,
    TAKEN_OVER,
    Adopted,
    ArchiveDump,
    Dump,
    EdgeDump,
    Exported,
    GuardDump,
    JobDump,
    MailboxDump,
    MoveState,
    OutputDump,
    RowDump,
    StepDump,
    TotalDump,
    refuse_freezing,
    refuse_other,
)
from backstay.core.output import StoredPart
from backstay.core.records import (
    ApiKey,
    AuditEntry,
    Counter,
    Declaration,
    Hold,
    JobRecord,
    JobType,
    LimitRow,
    QueueRow,
    Rate,
    Schedule,
    Verdict,
)
from backstay.core.result_tables import ResultTable, RowBatch
from backstay.core.states import ACTIVE, Status
from backstay.core.waits import EventWait, awaits_of
from backstay.engines import sql_rows
from backstay.engines.dynamodb import (
    access,
    dependencies,
    history,
    holder,
    insert_decision,
    items,
    maintenance,
    output,
    plan,
    read,
    results,
    schema,
    transitions,
)
from backstay.engines.dynamodb import table as dynamodb_table
from backstay.engines.dynamodb.board import fields_of
from backstay.engines.dynamodb.expressions import (
    Ask,
    Condition,
    Placeholders,
    absent,
    begins,
    below,
    equals,
    present,
    put,
    update,
)
from backstay.engines.dynamodb.insert import NEEDS_MAX
from backstay.engines.dynamodb.insert_decision import INLINE_DEPENDENCIES_MAX
from backstay.engines.dynamodb.items import new_wid
from backstay.engines.dynamodb.schema import STATUS, Item, Table, decode, encode
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.table import HOUR, CounterLane, Failed
from backstay.engines.dynamodb.transport import Lane
from backstay.engines.sql_rows import Source, export_page, whole
from backstay.errors import MoveFailed, StoreBusy

SOME = 50  # jobs read at once: even the largest fit into memory
WID = "moved"  # the writer id: the same for every try, so that a repeat writes the same
_NUMBERS = {"open": "open_children", "bad": "failed_children", "left": "cancelled_children"}
_ELSEWHERE = frozenset(
    {
        "status", "errors", "history", "parked", "trigger_rule", "result_tables", "dependencies", "dependent_jobs",
        "dependent_count", "processing_micros", "archived_at", "lease_expires_at", *_NUMBERS.values(),
    }
)  # fmt: skip
_ALWAYS = frozenset(each.name for each in msgspec.structs.fields(JobRecord) if each.required) | {"version"}
_USUAL = {each.name: each.default for each in msgspec.structs.fields(JobRecord) if not each.required}


# Export


async def export_jobs(session: Session, after: str | None, limit: int) -> AsyncIterator[tuple[Dump, str]]:
    partitions = [each for status in Status for each in schema.all_shards(status.value, session.shards)]
    entries: dict[str, str] = {}
    async for place, row in read.by_arrival(session, STATUS.name, partitions, after=after, page=SOME):
        entries[row["job_id"]] = place
        if len(entries) == SOME:
            for dump in await _dumps(session, list(entries)):
                yield dump, entries[dump.record.job_id]
            entries.clear()
    for dump in await _dumps(session, list(entries)):
        yield dump, entries[dump.record.job_id]
    await _refuse_lagging(session)


async def _refuse_lagging(session: Session) -> None:
    holders = Placeholders()
    body = {
        "TableName": session.tables.names[Table.JOBS],
        "ConsistentRead": True,
        "Select": "COUNT",
        "FilterExpression": holders.condition(present("status")),
        **holders.attributes(),
    }
    stored = 0
    while True:
        reply = await session.tables.call("Scan", body)
        stored += reply["Count"]
        if not reply.get("LastEvaluatedKey"):
            break
        body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"]}
    shown = sum((await read.counts(session)).values())
    if shown != stored:
        raise StoreBusy(f"{session.tables.shown}: its index only shows {shown:,} of {stored:,} jobs so far: try again")


async def _dumps(session: Session, job_ids: Sequence[str]) -> list[JobDump]:
    read = await session.tables.get(Table.JOBS, [(job_id,) for job_id in job_ids])
    found = [item for item in read if item is not None and "archived_at" not in item]
    texts = await items.fetch(session.tables, found)
    edges = await asyncio.gather(*(_edges(session, item) for item in found))
    return [_dump(item, items.record(item, texts), of) for item, of in zip(found, edges, strict=True)]


async def _edges(session: Session, item: Item) -> tuple[EdgeDump, ...]:
    parents = sorted(await dependencies.dependencies(session, item))
    read = await session.tables.get(Table.RECORDS, [schema.edge(parent, item["job_id"]) for parent in parents])
    return tuple(
        EdgeDump(parent, edge is None or "met" in edge, edge is not None and "joined" in edge)
        for parent, edge in zip(parents, read, strict=True)
    )


def _dump(item: Item, record: JobRecord, edges: tuple[EdgeDump, ...]) -> JobDump:
    rate = Rate(item["rate_count"], item["rate_micros"]) if "rate_count" in item else None
    return JobDump(
        record=dumps.bare(record),
        edges=edges,
        unmet=item.get("unmet", 0),
        joins=item.get("joins"),
        awaited=bool(item.get("awaited")),
        rate=rate,
    )


# Restore


async def restore_jobs(session: Session, packed: Sequence[bytes]) -> None:
    """Restore jobs: first the records that a job names, then the job. A repeat writes the same."""
    made = await _write_around(session, dumps.all_unpacked(dumps.JOBS, packed, JobDump))
    await session.tables.put_many(Table.JOBS, [{**item, **schema.derived(item, session.shards)} for item in made])
    await _point_to_latest(session, made)


async def adopt(session: Session, jobs: Sequence[Adopted], now: Instant) -> list[Verdict]:
    """Adopt jobs: first the records that a job names, then its dedup key, then the job, unless there is one by now. A
    key that was given to a job which is not stored afterwards belongs to no living job, and is free."""
    known = await insert_decision.get_jobs(session, [job.job_id for job in jobs])
    taken = await _taken(session, jobs, now)
    verdicts: dict[str, Verdict] = {}
    new: list[Adopted] = []
    for job in jobs:
        if job.job_id in known or job.job_id in verdicts:
            continue
        if job.job_id in taken and job.job.record.status in ACTIVE:
            verdicts[job.job_id] = Verdict.TAKEN
            continue
        verdicts[job.job_id] = Verdict.APPLIED
        new.append(job)
    made = await _write_around(session, [job.job for job in new])
    stored = await asyncio.gather(*(_put_new(session, item) for item in made))
    added = [item for item, is_new in zip(made, stored, strict=True) if is_new]
    await _point_to_latest(session, added)
    session.board.committed({signal for item in added for signal in sql_rows.entered(Status(item["status"]))})
    ids = {item["job_id"] for item in added}
    seen: set[str] = set()
    answers = []
    for job in jobs:
        verdict = verdicts.get(job.job_id, Verdict.STALE)
        is_again = job.job_id in seen or (verdict is Verdict.APPLIED and job.job_id not in ids)
        answers.append(Verdict.STALE if is_again else verdict)
        seen.add(job.job_id)
    return answers


async def _put_new(session: Session, item: Item) -> bool:
    """Store a job unless there is one with its id."""
    try:
        await session.tables.put(Table.JOBS, item, absent("job_id"))
    except Failed:
        return False
    return True


async def _taken(session: Session, jobs: Sequence[Adopted], now: Instant) -> set[str]:
    """Give each job its dedup key, unless that belongs to a living job; return the jobs that did not get theirs."""
    wanted: dict[str, GuardDump] = {}
    without: set[str] = set()
    for job in jobs:
        if job.guard is not None and wanted.setdefault(job.guard.dedup_key, job.guard).job_id != job.job_id:
            without.add(job.job_id)
    looked = await session.tables.get(Table.RECORDS, [schema.guard(key) for key in wanted])
    targets = await insert_decision.get_jobs(session, {guard["job_id"] for guard in looked if guard is not None})

    async def has(guard: GuardDump, seen: Item | None) -> bool:
        if seen is not None and seen["job_id"] == guard.job_id:
            return True  # by an earlier try
        if insert_decision.stands_for(seen, targets.get(seen["job_id"]) if seen else None, now) is not None:
            return False
        try:
            await session.tables.update(insert_decision.guard(guard.dedup_key, guard.job_id, guard.until, seen))
        except Failed:  # a job with it has just been submitted
            return False
        return True

    guards = list(wanted.values())
    given = await asyncio.gather(*(has(guard, seen) for guard, seen in zip(guards, looked, strict=True)))
    return without | {guard.job_id for guard, was_given in zip(guards, given, strict=True) if not was_given}


async def _write_around(session: Session, jobs: Sequence[JobDump]) -> list[Item]:
    """Write the records that jobs name; return the items of the jobs."""
    for queue, job_type in {(job.record.queue, job.record.job_type) for job in jobs if job.record.fairness_key}:
        await session.board.mark_fair(queue, job_type)
    spilled = [items.spill(item_of(job)) for job in jobs]
    around = [record for job in jobs for record in _around(job)]
    await session.tables.put_many(Table.RECORDS, [*around, *(text for _, texts in spilled for text in texts)])
    return [item for item, _ in spilled]


def item_of(dump: JobDump) -> Item:
    record = dump.record
    fields = msgspec.structs.asdict(record)
    item: Item = {
        name: value
        for name, value in fields.items()
        if name not in _ELSEWHERE and (name in _ALWAYS or value != _USUAL[name])
    }
    item |= {"status": record.status.value, "history": history.text_of(record.history), "wid": WID}
    if record.errors:
        item["errors"] = msgspec.json.encode(record.errors).decode()
    if record.trigger_rule != _USUAL["trigger_rule"]:
        item["rule"] = record.trigger_rule
    if record.result_tables:
        item["tables"] = set(record.result_tables)
    if record.children:
        item |= {name: number for name, field in _NUMBERS.items() if (number := fields[field]) or name == "open"}
    return items.without_empty_keys(items.fit(item | _beside(dump)))


def _beside(dump: JobDump) -> Item:
    """Return the attributes of an item that a record does not have."""
    parents = [edge.parent_id for edge in dump.edges]
    item: Item = {
        "unmet": dump.unmet or None,
        "joins": dump.joins,
        "joined": next((edge.parent_id for edge in dump.edges if edge.joined), None),
        "awaited": 1 if dump.awaited else None,
        "rate_count": None if dump.rate is None else dump.rate.count,
        "rate_micros": None if dump.rate is None else dump.rate.micros,
    }
    if dump.record.awaits is not None and isinstance(wait := awaits_of(dump.record.awaits), EventWait):
        item |= transitions.for_event(wait)
    if len(parents) > INLINE_DEPENDENCIES_MAX:
        item["needs"] = len(parents)
    elif parents:
        item["depends_on"] = parents
    return {name: value for name, value in item.items() if value is not None}


def _around(dump: JobDump) -> list[Item]:
    """Return the records of a job: its edges, and its entry in its parent's list of children."""
    job_id, parent = dump.record.job_id, dump.record.parent_job_id
    found = [
        dependencies.edge(edge.parent_id, job_id, met=edge.met, joined=edge.joined).item or {} for edge in dump.edges
    ]
    parents = [edge.parent_id for edge in dump.edges]
    if len(parents) > INLINE_DEPENDENCIES_MAX:
        for number, start in enumerate(range(0, len(parents), NEEDS_MAX)):
            pk, sk = schema.needs(job_id, number)
            found.append({"pk": pk, "sk": sk, "parents": parents[start : start + NEEDS_MAX]})
    if parent is not None:
        pk, sk = schema.kid(parent, job_id)
        found.append({"pk": pk, "sk": sk})
    return found


async def _point_to_latest(session: Session, made: Sequence[Item]) -> None:
    for item in made:
        for write in plan.latest(item):
            newer = absent("pk") | below("completed_at", item["completed_at"])
            with contextlib.suppress(Failed):
                await session.tables.update(put(write.table, write.item or {}, newer))


def fit_job(item: bytes) -> bytes:
    """Return the job as its item can hold it: long reasons, errors and logs are cut."""
    dump = dumps.unpacked(dumps.JOBS, item, JobDump)
    kept = items.record(item_of(dump), {})
    cut = {name: getattr(kept, name) for name in ("errors", "last_error", "error_type", "logs", "history", "metrics")}
    return dumps.packed(msgspec.structs.replace(dump, record=msgspec.structs.replace(dump.record, **cut)))


SCANNED = 200  # rows per request


async def export_rows(session: Session, after: str | None, _: int) -> AsyncIterator[tuple[Dump, str]]:
    begun_with, *place = sql_rows.position(after, ("",))
    for table in sorted(await results.result_tables(session), key=lambda each: each.name):
        if table.name < begun_with:
            continue
        begins = place[0] if table.name == begun_with else None
        async for dump, key in _of_table(session, table, begins):
            yield dump, sql_rows.cursor(table.name, key)


async def _of_table(
    session: Session, table: ResultTable, after: dict[str, Any] | None
) -> AsyncIterator[tuple[RowDump, dict[str, Any]]]:
    """Read rows consistently, in DynamoDB's own order."""
    body: dict[str, Any] = {
        "TableName": results.name_of(session.tables, table.name),
        "ConsistentRead": True,
        "Limit": SCANNED,
    }
    if after is not None:
        body["ExclusiveStartKey"] = encode(after)
    while True:
        reply = await session.tables.call("Scan", body, lane=Lane.IDLE)
        for wired in reply.get("Items", ()):
            item = decode(wired)
            row = results.stored(table, item)
            key = {name: item[name] for name in ("job_id", table.key)}
            yield RowDump.of(table.name, item["bs_attempt"], item["bs_part"], row), key
        if not reply.get("LastEvaluatedKey"):
            return
        body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"]}


async def restore_rows(session: Session, packed: Sequence[bytes]) -> None:
    known = {table.name: table for table in await results.result_tables(session)}
    made: dict[str, list[dict[str, Any]]] = {}
    for dump in dumps.all_unpacked(dumps.ROWS, packed, RowDump):
        hold = Hold(dump.job_id, dump.attempt, "")
        batch = RowBatch(hold, known[dump.table], dump.part, (), dump.origin)
        made.setdefault(dump.table, []).append(results.item(batch, dump.values, dump.created_at))
    for name, rows in made.items():
        await results.put_many(session.tables, known[name], rows)


SETTLING_SECONDS = 10.0  # longer than a verb retries


async def freeze(session: Session, state: MoveState | None) -> int:
    if state is None:
        await session.tables.delete_many(Table.RECORDS, [schema.MOVE_KEY])
        await session.board.read(fresh=True)
        return 0
    before = await stored(session)
    refuse_freezing(state_of(before), state)
    if state.kind == SEALED and (left := await _under_way(session, before)):
        return left
    await keep(session, state, before)
    return 0


async def keep(session: Session, state: MoveState, before: Item | None) -> None:
    """Store the transfer state, unless another run has changed it since `before` was read."""
    pk, sk = schema.MOVE_KEY
    frozen_at = int(time.time()) if before is None else before["frozen_at"]
    text = msgspec.json.encode(state).decode()
    item = {"pk": pk, "sk": sk, "state": text, "frozen_at": frozen_at, "wid": new_wid()}
    try:
        await session.tables.put(
            Table.RECORDS, item, absent("pk") if before is None else equals("state", before["state"])
        )
    except Failed:
        raise MoveFailed(TAKEN_OVER) from None
    await session.board.read(fresh=True)


async def stored(session: Session) -> Item | None:
    [item] = await session.tables.get(Table.RECORDS, [schema.MOVE_KEY])
    return item


def state_of(item: Item | None) -> MoveState | None:
    return None if item is None else msgspec.json.decode(item["state"], type=MoveState)


async def moving(session: Session) -> MoveState | None:
    return (await session.board.read(fresh=True)).move


async def _under_way(session: Session, before: Item | None) -> int:
    """Return how many operations would be left half done if the queue were sealed now."""
    settling = before is None or time.time() < before["frozen_at"] + SETTLING_SECONDS
    running = 0
    for shard in schema.all_shards(Status.PROCESSING.value, session.shards):
        running += await session.tables.count(Ask(table=Table.JOBS, index=STATUS.name, hash=shard))
    marks = 0
    for slot in range(schema.SLOTS):
        marks += await session.tables.count(Ask(table=Table.RECORDS, hash=schema.outbox(slot), consistent=True))
    return running + marks or int(settling and SETTLING_SECONDS > 0)


SCANNED = 200  # items examined per request
_WRITER = "moved"  # the writer name of restored counters; each store has its own


# Export


async def export(session: Session, kind: str, after: str | None, limit: int) -> Exported:
    return await export_page(_SOURCES[kind](session, after, limit + 1), limit)


async def _scanned(session: Session, table: Table, where: Condition, after: str | None) -> AsyncIterator[Item]:
    """Return all items of a kind, read consistently, in DynamoDB's own order."""
    holders = Placeholders()
    body = {
        "TableName": session.tables.names[table],
        "ConsistentRead": True,
        "Limit": SCANNED,
        "FilterExpression": holders.condition(where),
        **holders.attributes(),
    }
    if after is not None:
        body["ExclusiveStartKey"] = encode(msgspec.json.decode(after))
    while True:
        reply = await session.tables.call("Scan", body, lane=Lane.IDLE)
        for wired in reply.get("Items", ()):
            yield session.tables.item(table, wired)
        if not reply.get("LastEvaluatedKey"):
            return
        body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"]}


def _place(item: Item) -> str:
    names = ("job_id",) if "pk" not in item else ("pk", "sk")
    return msgspec.json.encode({name: item[name] for name in names}).decode()


async def _archive(session: Session, after: str | None, _: int) -> Source:
    async for item in _scanned(session, Table.JOBS, present("archived_at"), after):
        yield sql_rows.archived(item["ended"], item["archived_at"], "files" in item, item["details"]), _place(item)


async def _steps(session: Session, after: str | None, _: int) -> Source:
    last: tuple[str, Item | None] = "", None  # of which job, and up to where its steps are forgotten
    async for item in _scanned(session, Table.RECORDS, begins("pk", schema.steps("")), after):
        job_id = item["pk"].removeprefix(schema.steps(""))
        if "name" not in item:
            continue  # the mark itself
        if last[0] != job_id:  # steps of one job come one after another
            last = job_id, await holder.forgotten(session, job_id)
        if holder.is_forgotten(item, last[1]):
            continue
        step = StepDump(job_id, item["kind"], item["name"], item["answer"], item["attempt"], item["recorded_at"])
        yield step, _place(item)


async def _mailboxes(session: Session, after: str | None, _: int) -> Source:
    async for item in _scanned(session, Table.RECORDS, begins("pk", schema.mailbox("")[0]), after):
        yield MailboxDump(item["key"], item["content"], item["expires_at"]), _place(item)


async def _output(session: Session, after: str | None, _: int) -> Source:
    async for item in _scanned(session, Table.RECORDS, begins("pk", schema.output("")), after):
        part = output.part_of(item)
        job_id = item["pk"].removeprefix(schema.output(""))
        yield OutputDump(job_id, **{name: getattr(part, name) for name in part.__struct_fields__}), _place(item)


async def _guards(session: Session, after: str | None, _: int) -> Source:
    async for item in _scanned(session, Table.RECORDS, begins("pk", schema.guard("")[0]), after):
        yield GuardDump(item["key"], item["job_id"], item.get("until")), _place(item)


async def _counters(session: Session, after: str | None, _: int) -> Source:
    """Return counters hour by hour: a month of them is large."""
    since, number = sql_rows.position(after, (0, -1))
    for hour in sorted(
        {hour for hour, _ in await dynamodb_table.hours(session.tables, since // HOUR, schema.NO_TIME // HOUR)}
    ):
        found = await dynamodb_table.counters(session.tables, max(since, hour * HOUR), (hour + 1) * HOUR)
        places: dict[Instant, int] = {}
        for counter in found:
            place = places[counter.minute] = places.get(counter.minute, -1) + 1
            if (counter.minute, place) > (since, number):
                yield counter, sql_rows.cursor(counter.minute, place)


async def _trail(session: Session, after: str | None, _: int) -> Source:
    async for entry in access.entries(session, after):
        yield entry, entry.entry_id


_SOURCES: dict[str, Callable[[Session, str | None, int], Source]] = {
    dumps.TYPES: lambda session, after, _: whole(read.job_types(session), after),
    dumps.QUEUES: lambda session, after, _: whole(session.board.queues(), after),
    dumps.LIMITS: lambda session, after, _: whole(session.board.limits(), after),
    dumps.SCHEDULES: lambda session, after, _: whole(maintenance.schedules(session, ()), after),
    dumps.DECLARATIONS: lambda session, after, _: whole(maintenance.declarations(session), after),
    dumps.TABLES: lambda session, after, _: whole(results.result_tables(session), after),
    dumps.JOBS: export_jobs,
    dumps.STEPS: _steps,
    dumps.OUTPUT: _output,
    dumps.MAILBOXES: _mailboxes,
    dumps.ARCHIVE: _archive,
    dumps.GUARDS: _guards,
    dumps.COUNTERS: _counters,
    dumps.TOTALS: lambda session, after, _: whole(access.export(session.tables), after),
    dumps.KEYS: lambda session, after, _: whole(access.keys(session, ()), after),
    dumps.AUDIT: _trail,
    dumps.ROWS: export_rows,
}


def fit(kind: str, item: bytes) -> bytes:
    return fit_job(item) if kind == dumps.JOBS else item


# Restore


async def restore(session: Session, kind: str, packed: Sequence[bytes], state: MoveState) -> None:
    """Store the items first, then the progress: after a crash in between, the same items are written again."""
    before = await stored(session)
    refuse_other(state_of(before), state)
    if packed:
        await _RESTORES[kind](session, packed)
    await keep(session, state, before)


async def _restore_types(session: Session, packed: Sequence[bytes]) -> None:
    await read.restore_types(session, dumps.all_unpacked(dumps.TYPES, packed, JobType))


async def _restore_queues(session: Session, packed: Sequence[bytes]) -> None:
    made = []
    for row in dumps.all_unpacked(dumps.QUEUES, packed, QueueRow):
        pk, sk = schema.queue_row(row.name)
        made.append({"pk": pk, "sk": sk, "nonce": _WRITER, "wid": _WRITER, **msgspec.structs.asdict(row)})
    await session.tables.put_many(Table.RECORDS, made)


async def _restore_limits(session: Session, packed: Sequence[bytes]) -> None:
    made = []
    for row in dumps.all_unpacked(dumps.LIMITS, packed, LimitRow):
        pk, sk = schema.limit_row(row.of, row.name)
        made.append({"pk": pk, "sk": sk, "nonce": _WRITER, "wid": _WRITER, **fields_of(row)})
    await session.tables.put_many(Table.RECORDS, made)


async def _restore_schedules(session: Session, packed: Sequence[bytes]) -> None:
    made = []
    for schedule in dumps.all_unpacked(dumps.SCHEDULES, packed, Schedule):
        pk, sk = schema.schedule(schedule.name)
        made.append({**msgspec.structs.asdict(schedule), "pk": pk, "sk": sk, "wid": _WRITER})
    await session.tables.put_many(Table.RECORDS, made)


async def _restore_declarations(session: Session, packed: Sequence[bytes]) -> None:
    found = dumps.all_unpacked(dumps.DECLARATIONS, packed, Declaration)
    await maintenance.restore_declarations(session, found)


async def _restore_archive(session: Session, packed: Sequence[bytes]) -> None:
    made = []
    for dump in dumps.all_unpacked(dumps.ARCHIVE, packed, ArchiveDump):
        record = dump.record
        item: Item = {
            "job_id": record.job_id,
            "archived_at": record.archived_at,
            "ended": record.status.value,
            "details": sql_rows.archived_details(dump),
            "wid": items.new_wid(),
            "dedup_key": record.dedup_key,
            "files": 1 if dump.has_files else None,
        }
        kept = {name: value for name, value in item.items() if value is not None}
        made.append({**kept, **schema.derived(kept, session.shards)})
    await session.tables.put_many(Table.JOBS, made)


async def _restore_steps(session: Session, packed: Sequence[bytes]) -> None:
    made = []
    for dump in dumps.all_unpacked(dumps.STEPS, packed, StepDump):
        if len(dump.answer.encode()) > holder.ANSWER_BYTES_MAX:
            raise MoveFailed(
                f"the answer of step {dump.name!r} of job {dump.job_id} has more than the"
                f" {holder.ANSWER_BYTES_MAX:,} bytes that DynamoDB keeps: end that job first, and purge it"
            )
        pk, sk = schema.step(dump.job_id, dump.kind, dump.name)
        fields = {name: value for name, value in msgspec.structs.asdict(dump).items() if name != "job_id"}
        made.append({"pk": pk, "sk": sk, **fields})
    await session.tables.put_many(Table.RECORDS, made)


async def _restore_mailboxes(session: Session, packed: Sequence[bytes]) -> None:
    made = []
    for dump in dumps.all_unpacked(dumps.MAILBOXES, packed, MailboxDump):
        pk, sk = schema.mailbox(dump.event_key)
        fields = {"key": dump.event_key, "content": dump.content, "expires_at": dump.expires_at, "nonce": _WRITER}
        made.append({"pk": pk, "sk": sk, **fields})
    await session.tables.put_many(Table.RECORDS, made)


async def _restore_output(session: Session, packed: Sequence[bytes]) -> None:
    made = []
    for dump in dumps.all_unpacked(dumps.OUTPUT, packed, OutputDump):
        fields = {name: getattr(dump, name) for name in StoredPart.__struct_fields__}
        made.append(output.item_of(dump.job_id, StoredPart(**fields)))
        await _mark_streamed(session, dump)
    await session.tables.put_many(Table.RECORDS, made)


async def _mark_streamed(session: Session, dump: OutputDump) -> None:
    """Mark the job, which is restored before its output, so that retention removes both."""
    write = update(
        Table.JOBS, (dump.job_id,), sets={"streamed": dump.attempt}, condition=present("version") & absent("streamed")
    )
    with contextlib.suppress(Failed):  # marked with another part, or archived
        await session.tables.update(write, lane=Lane.IDLE)


async def _restore_guards(session: Session, packed: Sequence[bytes]) -> None:
    made = []
    for dump in dumps.all_unpacked(dumps.GUARDS, packed, GuardDump):
        pk, sk = schema.guard(dump.dedup_key)
        fields = {"key": dump.dedup_key, "job_id": dump.job_id, "until": dump.until, "nonce": _WRITER}
        made.append({"pk": pk, "sk": sk, **fields})
    await session.tables.put_many(Table.RECORDS, made)


async def _restore_counters(session: Session, packed: Sequence[bytes]) -> None:
    made: list[Item] = []
    for counter in dumps.all_unpacked(dumps.COUNTERS, packed, Counter):
        lane = CounterLane(_WRITER, 0, counter.minute)
        made.append(lane.hour_item())
        made.append(lane.item(counter))
    unique = {(item["pk"], item["sk"]): item for item in made}
    await session.tables.put_many(Table.RECORDS, list(unique.values()))


async def _restore_totals(session: Session, packed: Sequence[bytes]) -> None:
    await access.restore(session.tables, dumps.all_unpacked(dumps.TOTALS, packed, TotalDump))


async def _restore_keys(session: Session, packed: Sequence[bytes]) -> None:
    for key in dumps.all_unpacked(dumps.KEYS, packed, ApiKey):
        await access.save_key(session, key, new=False)


async def _restore_trail(session: Session, packed: Sequence[bytes]) -> None:
    await access.audit(session, dumps.all_unpacked(dumps.AUDIT, packed, AuditEntry))


async def _declare(session: Session, packed: Sequence[bytes]) -> None:
    await results.declare(session, dumps.all_unpacked(dumps.TABLES, packed, ResultTable))


_RESTORES: dict[str, Callable[[Session, Sequence[bytes]], Awaitable[None]]] = {
    dumps.TYPES: _restore_types,
    dumps.QUEUES: _restore_queues,
    dumps.LIMITS: _restore_limits,
    dumps.SCHEDULES: _restore_schedules,
    dumps.DECLARATIONS: _restore_declarations,
    dumps.TABLES: _declare,
    dumps.JOBS: restore_jobs,
    dumps.STEPS: _restore_steps,
    dumps.OUTPUT: _restore_output,
    dumps.MAILBOXES: _restore_mailboxes,
    dumps.ARCHIVE: _restore_archive,
    dumps.GUARDS: _restore_guards,
    dumps.COUNTERS: _restore_counters,
    dumps.TOTALS: _restore_totals,
    dumps.KEYS: _restore_keys,
    dumps.AUDIT: _restore_trail,
    dumps.ROWS: restore_rows,
}

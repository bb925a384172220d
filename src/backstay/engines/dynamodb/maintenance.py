"""Maintenance on DynamoDB: promote, expired, release, schedules, the backstop sweep, diagnosis and costs.

Unfinished work is continued from its marks: what a process has started and not finished, any other finishes.

The backstop is a costly sweep that one process does for all, a page at a time. Nothing in it is needed while everything
works. It finds what an index has lost, what is parked or frozen without a mark, and texts that no job names because
their commit never happened.

The prices are Amazon's list prices on demand in us-east-1 since November 2024; other regions cost up to a half more.
Amazon's documents do not say whether index entries are charged double inside transactions, as the items themselves are;
DynamoDB Local says they are. So every figure is a range, from the one to the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import random
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from backstay.clock import MICROS, Instant, SystemClock
from backstay.core.admission import RunLimits
from backstay.core.checks import count
from backstay.core.records import Declaration, ExpiredClaim, Finding, Firing, Promoted, Schedule, Signal, Verdict
from backstay.core.states import Status
from backstay.core.workers import renewal_seconds
from backstay.engines.dynamodb import (
    admission,
    children,
    dependencies,
    fairness,
    insert,
    items,
    outbox,
    parking,
    retention,
    transitions,
    waits,
)
from backstay.engines.dynamodb import schema as dynamodb_schema
from backstay.engines.dynamodb.admission import bucket_of, limited_key
from backstay.engines.dynamodb.commit import Cancelled, Commit, merged
from backstay.engines.dynamodb.expressions import (
    Ask,
    Write,
    absent,
    change,
    delete,
    equals,
    present,
    put,
    put_new,
    update,
)
from backstay.engines.dynamodb.insert import ElseRefused
from backstay.engines.dynamodb.outbox import Mark, MarkKind
from backstay.engines.dynamodb.schema import INDEXES, READY, SCHEMA, TIME, WORKER, Index, Item, Key, Table, size
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.table import Failed, bare
from backstay.engines.dynamodb.transport import Lane
from backstay.errors import BackstayError, InvalidSchedule, StoreGone, StoreMoved, StoreUnavailable
from backstay.limits import LEASE_SECONDS, SCHEDULES_MAX

log = logging.getLogger("backstay.engines.dynamodb")

_FAILING_SECONDS_MAX = 30.0  # a throttled table fails each mark after eight seconds
TURN_MICROS = 60 * MICROS  # between two pages, by any process
PAGE = 500
LATE_MICROS = 600 * MICROS  # a job unchanged for this long is checked in its index
LITTER_MICROS = 24 * 3600 * MICROS
_LOOKED_UP_MAX = 50  # items per page
_OF_A_JOB = ("body|", "step|", "edge|", "needs|", "kid|", "staged|", "output|")
_NAMES = ("job_id", "status", "body", "result_body", "artifacts_body")


async def sweep(session: Session, now: Instant) -> None:
    """Sweep one page of each table, if it is time and no other process has taken the turn."""
    if not await _take_turn(session, now):
        return
    board = await session.board.read(fresh=False)
    await fairness.forget_idle(session, board.fair, now)
    await parking.drop_dead_holders(session, now)
    for table in Table:
        await _sweep_page(session, table, now)


async def _take_turn(session: Session, now: Instant) -> bool:
    place = dynamodb_schema.turn("sweep")
    [last] = await session.tables.get(Table.RECORDS, [place], lane=Lane.IDLE)
    taken_at = None if last is None else last["taken_at"]
    if taken_at is not None and abs(now - taken_at) < TURN_MICROS:
        return False
    sets = {"taken_at": now, "by": session.writer}
    try:
        await session.tables.update(
            update(Table.RECORDS, place, sets=sets, condition=equals("taken_at", taken_at)), lane=Lane.IDLE
        )
    except Failed:
        return False
    return True


async def _sweep_page(session: Session, table: Table, now: Instant) -> None:
    place = dynamodb_schema.turn(f"scan {table.value}")
    [last] = await session.tables.get(Table.RECORDS, [place], lane=Lane.IDLE)
    start = None if last is None else last.get("at")
    rest = int(session.tables.wire.address.sweep_hours * 3600) * MICROS  # between two sweeps of a table
    if start is None and last is not None and abs(now - last["ended_at"]) < rest:
        return
    rows, then = await session.tables.scan(table, start=start, page=PAGE, lane=Lane.IDLE)
    if table is Table.JOBS:
        await _look_at_jobs(session, rows, now)
    else:
        await _look_at_records(session, rows, now)
    if then is None:
        write = update(Table.RECORDS, place, sets={"ended_at": now}, removes=("at",))
    else:
        write = update(Table.RECORDS, place, sets={"at": then, "ended_at": 0})
    await session.tables.update(write, lane=Lane.IDLE)


# Jobs


async def _look_at_jobs(session: Session, rows: list[Item], now: Instant) -> None:
    late: list[tuple[Item, Item]] = []
    for row in rows:
        item = bare(row)
        if "archived_at" in item:
            continue
        if dynamodb_schema.derived(item, session.shards) != {
            name: row[name] for name in dynamodb_schema.DERIVED if name in row
        }:
            await _derive_anew(session, item)
        elif _is_late(item, now):
            late.append((row, item))
        if "parked" in item:
            await _mark(session, item, now)
        if "frozen" in item:
            await retention.thaw(session, item, now)
    for row, item in random.sample(late, min(len(late), _LOOKED_UP_MAX)):  # not the same ones in every sweep
        await _look_up(session, row, item)


def _is_late(item: Item, now: Instant) -> bool:
    """Return whether something should have happened to it long ago. Its worker or queue may have stopped, or an index
    has lost it."""
    match Status(item["status"]):
        case Status.PENDING:
            return "parked" not in item and bool(item["updated_at"] < now - LATE_MICROS)
        case Status.SCHEDULED | Status.RETRYING:
            return bool(item["scheduled_for"] < now - LATE_MICROS)
        case Status.PROCESSING:
            return bool(item["lease_expires_at"] < now - LATE_MICROS)
        case Status.WAITING:
            return bool(item.get("wakes_at", now) < now - LATE_MICROS)
        case _:
            return False


async def _look_up(session: Session, row: Item, item: Item) -> None:
    index: Index = READY if item["status"] == Status.PENDING else TIME
    ask = Ask(table=Table.JOBS, index=index.name, hash=row[index.hash], begins=row[index.range])
    if await session.tables.count(ask, stop_at=1, lane=Lane.IDLE):
        return
    log.warning("%s was missing from %s: added again", item["job_id"], index.name)
    standing = equals("version", item["version"])
    gone = update(Table.JOBS, (item["job_id"],), removes=(index.hash, index.range), condition=standing)
    with contextlib.suppress(Failed):
        await session.tables.update(gone, lane=Lane.IDLE)
        await _derive_anew(session, item)


async def _derive_anew(session: Session, item: Item) -> None:
    also = equals("parked", item.get("parked")) & equals("lease_expires_at", item.get("lease_expires_at"))
    with contextlib.suppress(Failed):
        await session.tables.update(change(item, item, also=also), lane=Lane.IDLE)


async def _mark(session: Session, item: Item, now: Instant) -> None:
    """Write the missing mark of a parked job, so that it is checked again."""
    bucket = bucket_of(item)
    if item["parked"] == parking.BY_KEY:
        await parking.mark_keys(session, [item], now)
    elif bucket is not None:
        states = await admission.read(session.tables, [item], RunLimits(), now, Lane.IDLE)
        await parking.mark(session, states.rates, bucket, states.rates[bucket].next_start(bucket, now), now)


# Records


async def _look_at_records(session: Session, rows: list[Item], now: Instant) -> None:
    await _remove_litter(session, [row for row in rows if row["pk"].startswith(_OF_A_JOB)], now)
    for row in rows:
        if row["pk"].startswith("gate|r|") and row["full_at"] < now - LITTER_MICROS and "due_at" not in row:
            await _delete_unchanged(session, row)  # a full bucket is the same as no bucket
    await waits.prune(
        session, [row for row in rows if row["pk"].startswith("mailbox|") and row["expires_at"] < now], now
    )
    old = [row for row in rows if row["pk"].startswith("gate|q|") and row.get("at", now) < now - LITTER_MICROS]
    await session.tables.delete_many(Table.RECORDS, [(row["pk"], row["sk"]) for row in old], lane=Lane.IDLE)


async def _remove_litter(session: Session, rows: list[Item], now: Instant) -> None:
    """Remove records of jobs that do not exist, because their commit failed or the process that archived them died; and
    texts that no job names, because the commit that would have named them failed."""
    ids = sorted({_job_of(row) for row in rows})
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in ids], only=_NAMES, lane=Lane.IDLE)
    jobs = {job_id: item for job_id, item in zip(ids, found, strict=True) if item is not None and "status" in item}
    litter: list[Key] = []
    for row in rows:
        if not _is_unnamed(row, jobs.get(_job_of(row)), now):
            continue
        if not str(row["pk"]).startswith("body|"):
            litter.append((row["pk"], row["sk"]))
        elif "unnamed_at" not in row:
            await _suspect(session, row, now)
        elif row["unnamed_at"] < now - LITTER_MICROS:
            litter.append((row["pk"], row["sk"]))
    if litter:
        log.info("removed %d orphaned records", len(litter))
        await session.tables.delete_many(Table.RECORDS, litter, lane=Lane.IDLE)


async def _suspect(session: Session, row: Item, now: Instant) -> None:
    """Mark a text that no job names. A text is written before the commit that names it, and its age is unknown: the
    job's id may be older, and the job may run for days. So it is removed only if a later sweep still finds it
    unnamed."""
    mark = update(Table.RECORDS, (row["pk"], row["sk"]), sets={"unnamed_at": now}, condition=present("pk"))
    with contextlib.suppress(Failed):
        await session.tables.update(mark, lane=Lane.IDLE)


def _is_unnamed(row: Item, job: Item | None, now: Instant) -> bool:
    kind = str(row["pk"]).partition("|")[0]
    if kind == "body":
        return job is None or (row["pk"], row["sk"]) not in items.names_of(job)
    return job is None and _is_old(_job_of(row), now) and not (kind == "edge" and "met" not in row)


def _job_of(row: Item) -> str:
    return str(row["pk"]).split("|")[1]


def _is_old(job_id: str, now: Instant) -> bool:
    """Return whether an id is old, by the time in it; an id without a time is left alone."""
    try:
        number = uuid.UUID(job_id)
    except ValueError:
        return False
    return number.version == 7 and (number.int >> 80) * 1_000 < now - LITTER_MICROS


async def _delete_unchanged(session: Session, row: Item) -> None:
    with contextlib.suppress(Failed):
        await session.tables.update(
            delete(Table.RECORDS, (row["pk"], row["sk"]), equals("nonce", row["nonce"])), lane=Lane.IDLE
        )


SCHEDULE_BYTES_MAX = 390_000  # an item holds 400 KB
_FIELDS = Schedule.__struct_fields__
_OF_TICKS = ("created_at", "last_at", "last_job_id", "skipped", "skipped_at")  # an edit does not change these


async def save_schedule(session: Session, schedule: Schedule, expected_version: int | None) -> Verdict:
    _refuse_too_large(schedule)
    write = await _first(session, schedule) if expected_version is None else _next(schedule, expected_version)
    try:
        await session.tables.update(write, verb="save_schedule")
    except Failed as failed:
        return Verdict.GONE if failed.item is None else Verdict.STALE
    session.board.committed({Signal.PLANNED})
    return Verdict.APPLIED


def _refuse_too_large(schedule: Schedule) -> None:
    """Refuse a schedule that does not fit: its template is JSON inside JSON, so a payload full of quotes takes twice
    its length."""
    takes = size({name: value for name, value in msgspec.structs.asdict(schedule).items() if value is not None})
    if takes > SCHEDULE_BYTES_MAX:
        raise InvalidSchedule(
            f"schedule {schedule.name!r:.60} has {takes:,} bytes, and DynamoDB keeps {SCHEDULE_BYTES_MAX:,}: store its"
            " payload elsewhere and schedule a reference to it"
        )


async def _first(session: Session, schedule: Schedule) -> Write:
    pk, sk = dynamodb_schema.schedule(schedule.name)
    stored = await session.tables.count(
        Ask(table=Table.RECORDS, hash=dynamodb_schema.SCHEDULES, consistent=True), SCHEDULES_MAX
    )
    if stored >= SCHEDULES_MAX:
        raise InvalidSchedule(f"there are {SCHEDULES_MAX:,} schedules already (SCHEDULES_MAX): remove some first")
    fields = {name: value for name, value in msgspec.structs.asdict(schedule).items() if value is not None}
    return put_new(Table.RECORDS, {**fields, "pk": pk, "sk": sk, "wid": items.new_wid()})


def _next(schedule: Schedule, expected_version: int) -> Write:
    fields = {name: value for name, value in msgspec.structs.asdict(schedule).items() if name not in _OF_TICKS}
    return update(
        Table.RECORDS,
        dynamodb_schema.schedule(schedule.name),
        sets={**fields, "wid": items.new_wid()},
        removes=tuple(name for name, value in fields.items() if value is None),
        condition=equals("version", expected_version),
    )


async def drop_schedule(session: Session, name: str, expected_version: int | None = None) -> Verdict:
    # A transaction, whose token recognises our own repeat: a deleted item cannot name its writer.
    commit = Commit(session.tables, "drop_schedule", SystemClock().now())
    as_read = present("pk") if expected_version is None else equals("version", expected_version)
    commit.write(delete(Table.RECORDS, dynamodb_schema.schedule(name), as_read))
    try:
        await commit.run(Lane.URGENT)
    except Cancelled:
        [item] = await session.tables.get(Table.RECORDS, [dynamodb_schema.schedule(name)])
        return Verdict.GONE if item is None else Verdict.STALE
    return Verdict.APPLIED


async def save_declaration(session: Session, declaration: Declaration, expected_version: int | None) -> Verdict:
    item = {**_declared(declaration), "wid": items.new_wid()}
    try:
        await session.tables.update(
            put(Table.RECORDS, item, equals("version", expected_version)), verb="save_declaration"
        )
    except Failed:
        return Verdict.STALE
    return Verdict.APPLIED


async def declarations(session: Session) -> list[Declaration]:
    ask = Ask(table=Table.RECORDS, hash=dynamodb_schema.DECLARATIONS, consistent=True)
    return [msgspec.json.decode(item["details"], type=Declaration) async for item in session.tables.ask(ask)]


async def restore_declarations(session: Session, found: Sequence[Declaration]) -> None:
    await session.tables.put_many(Table.RECORDS, [_declared(each) for each in found])


def _declared(declaration: Declaration) -> Item:
    pk, sk = dynamodb_schema.declaration(declaration.origin)
    details = msgspec.json.encode(declaration).decode()
    return {"pk": pk, "sk": sk, "version": declaration.version, "details": details}


async def schedules(
    session: Session, names: Sequence[str], after: str = "", limit: int | None = None
) -> list[Schedule]:
    found: Sequence[Item | None]
    if names:
        found = await session.tables.get(
            Table.RECORDS, [dynamodb_schema.schedule(name) for name in dict.fromkeys(names)]
        )
    else:
        above = dynamodb_schema.part(after) if after else None
        ask = Ask(table=Table.RECORDS, hash=dynamodb_schema.SCHEDULES, above=above, consistent=True)
        found = await session.tables.first(ask, limit)
    rows = [_schedule(item) for item in found if item is not None]
    return sorted(rows, key=lambda schedule: schedule.name)


async def upcoming(session: Session, limit: int) -> list[Schedule]:
    """Return the schedules with the next ticks. No index has them by time, so all are read: SCHEDULES_MAX is what that
    can bear."""
    running = (each for each in await schedules(session, ()) if each.paused_at is None)
    return heapq.nsmallest(limit, running, key=lambda schedule: (schedule.next_at, schedule.name))


def _schedule(item: Item) -> Schedule:
    return Schedule(**{name: item[name] for name in _FIELDS if name in item})


async def fire(session: Session, firings: Sequence[Firing], now: Instant) -> list[Verdict]:
    return [await _fire(session, firing, now) for firing in firings]


async def _fire(session: Session, firing: Firing, now: Instant) -> Verdict:
    last = firing.jobs[-1] if firing.jobs else None
    ticked = {"last_at": last.tick_at, "last_job_id": last.job_id} if last is not None else {}
    if firing.skipped:
        ticked["skipped_at"] = firing.skipped_at
    moves_on = update(
        Table.RECORDS,
        dynamodb_schema.schedule(firing.name),
        sets={"next_at": firing.next_at, **ticked},
        adds={"skipped": firing.skipped} if firing.skipped else {},
        condition=equals("version", firing.version) & equals("next_at", firing.due_at) & absent("paused_at"),
    )
    # Check first: a tick that another worker has fired must not fail because its queue is full.
    if (verdict := await _why_not(session, firing)) is not None:
        return verdict
    try:
        inserted = await insert.insert(session, firing.jobs, now, verb="fire", also=[moves_on])
    except ElseRefused:
        return await _why_not(session, firing) or Verdict.STALE
    if last is not None and (stands_for := inserted[-1].job_id) != last.job_id:
        # Its dedup key belongs to that job. A worker that dies here leaves the id of a job that was never made.
        into = equals("last_job_id", last.job_id)
        write = update(
            Table.RECORDS, dynamodb_schema.schedule(firing.name), sets={"last_job_id": stands_for}, condition=into
        )
        with contextlib.suppress(Failed):
            await session.tables.update(write, lane=Lane.IDLE)
    return Verdict.APPLIED


async def _why_not(session: Session, firing: Firing) -> Verdict | None:
    [item] = await session.tables.get(Table.RECORDS, [dynamodb_schema.schedule(firing.name)])
    if item is None:
        return Verdict.GONE
    as_read = (item["version"], item["next_at"], item.get("paused_at")) == (firing.version, firing.due_at, None)
    return None if as_read else Verdict.STALE


async def go_on(session: Session, now: Instant, limit: int) -> int:
    """Continue from all marks, up to `limit` changes. A mark that fails is tried again by the next call, after the
    others: it must not keep them waiting."""
    done = 0
    loop = asyncio.get_running_loop()
    until = loop.time() + _FAILING_SECONDS_MAX
    marks = [each async for each in outbox.marks(session.tables, limit)]
    session.failed_marks.intersection_update({mark.nonce for mark in marks})
    for mark in sorted(marks, key=lambda mark: mark.nonce in session.failed_marks):
        if done >= limit:
            break
        try:
            done += await _go_on_from(session, mark, now, limit - done)
        except (StoreGone, StoreMoved, StoreUnavailable):
            raise  # not caused by the mark
        except Exception as error:
            again = mark.nonce in session.failed_marks
            session.failed_marks.add(mark.nonce)
            log.log(
                logging.DEBUG if again else logging.WARNING,
                "could not continue the commit %s %s, will try again in the next sweep: %s: %s",
                *(mark.kind, mark.name, type(error).__name__, error),
            )
            if loop.time() > until:
                break
    return done


async def _go_on_from(session: Session, mark: Mark, now: Instant, limit: int) -> int:
    match MarkKind(mark.kind):
        case MarkKind.ENDED | MarkKind.JOIN:
            return await dependencies.resume(session, [mark], now, limit)
        case MarkKind.INSERT:
            return await insert.go_on(session, mark, now)
        case MarkKind.LINK:
            return await dependencies.resume_link(session, mark, now)
        case MarkKind.UNPACK:
            return await children.go_on(session, mark, now, limit)
        case MarkKind.STAGED:
            return await children.clear(session, mark)
        case MarkKind.TREE:
            return await retention.go_on(session, mark, now)


_TOGETHER = 16
_DUE = (Status.SCHEDULED, Status.RETRYING)


def _is_due(item: Item, now: Instant) -> bool:
    if item.get("status") in _DUE:
        return bool(item["scheduled_for"] <= now)
    return transitions.event_wait(item) is not None and bool(item.get("wakes_at", now + 1) <= now)


# promote


async def promote(session: Session, now: Instant, limit: int) -> Promoted:
    promoted, next_due = await _promote_due(session, now, limit)
    signals, next_rate = await parking.unpark_due(session, now)
    if promoted:
        signals = signals | {Signal.READY}
    session.board.committed(signals)
    if not promoted:
        session.board.again_if_new(Signal.DUE)
    next_over = await session.board.end_pauses(now)
    return Promoted(promoted, min((due for due in (next_due, next_rate, next_over) if due is not None), default=None))


async def _promote_due(session: Session, now: Instant, limit: int) -> tuple[int, Instant | None]:
    """Promote due jobs, the longest due first. Jobs that another process promotes at the same moment do not count
    towards the limit."""
    done = 0
    batch: list[str] = []
    async for at, job_id in _by_time(session, "due", page=limit + 1):
        if at > now:
            return done + await _promote_batch(session, batch, now), at
        if done + len(batch) == limit:
            done += await _promote_batch(session, batch, now)
            batch = []
            if done == limit:
                return done, at  # more are due: promote again at once
        batch.append(job_id)
    return done + await _promote_batch(session, batch, now), None


async def _promote_batch(session: Session, job_ids: Sequence[str], now: Instant) -> int:
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in job_ids], lane=Lane.IDLE)
    due = [item for item in found if item is not None and _is_due(item, now)]
    pairs = [(item, items.fit(transitions.promoted(item, now, items.new_wid()))) for item in due]
    limited = [new for _, new in pairs if limited_key(new) is not None or bucket_of(new) is not None]
    # Otherwise many jobs of a full key that become due at once would block all others until claims have parked them.
    parked = await parking.decide_at_entry(session, limited, now) if limited else {}
    done = 0
    for start in range(0, len(pairs), _TOGETHER):
        batch = [
            (old, transitions.parked(new, parked.get(new["job_id"]))) for old, new in pairs[start : start + _TOGETHER]
        ]
        done += sum(await asyncio.gather(*(_promote(session, old, new) for old, new in batch)))
    return done


async def _promote(session: Session, item: Item, promoted: Item) -> bool:
    try:
        await session.tables.update(change(item, promoted), lane=Lane.IDLE, verb="promote")
    except Failed:
        return False
    return True


async def _by_time(
    session: Session, kind: str, *, up_to: Instant | None = None, page: int
) -> AsyncIterator[tuple[Instant, str]]:
    """Yield entries of the time index under `due`, `lease` or `expire`, the earliest first, across all shards."""
    end = None if up_to is None else f"{dynamodb_schema.at(up_to)}|{dynamodb_schema.HIGH}"
    asks = [
        Ask(table=Table.JOBS, index=TIME.name, hash=hash_value, up_to=end, page=page)
        for hash_value in dynamodb_schema.all_shards(kind, session.shards)
    ]
    async for row in merged([session.tables.ask(ask, lane=Lane.IDLE) for ask in asks], TIME.range):
        yield int(str(row[TIME.range]).split("|")[0]), row["job_id"]


# expired


async def expired(session: Session, now: Instant, limit: int, dead_workers: Sequence[str] = ()) -> list[ExpiredClaim]:
    """Return expired claims. The index and the names of dead workers propose; the job's item decides."""
    ids: dict[str, None] = {}
    async for _, job_id in _by_time(session, "lease", up_to=now, page=limit):
        ids[job_id] = None
        if len(ids) == limit:
            break
    dead = frozenset(dead_workers)
    for worker_id in dead_workers:
        ask = Ask(table=Table.JOBS, index=WORKER.name, hash=worker_id, begins=Status.PROCESSING.value, page=limit)
        of_worker = 0
        async for row in session.tables.ask(ask, lane=Lane.IDLE):
            ids[row["job_id"]] = None
            of_worker += 1
            if of_worker == limit:
                break
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in ids], lane=Lane.IDLE)
    over = [
        items.expired(item)
        for item in found
        if item is not None
        and item.get("status") == Status.PROCESSING
        and (item["lease_expires_at"] <= now or item.get("worker_id") in dead)
    ]
    return sorted(over, key=lambda claim: claim.lease_expires_at)[:limit]


# overdue


async def overdue(session: Session, now: Instant, limit: int) -> list[str]:
    """Return jobs that were to start by now and have not. The index proposes; the job's item decides."""
    ids: list[str] = []
    async for _, job_id in _by_time(session, "expire", up_to=now, page=limit):
        ids.append(job_id)
        if len(ids) == limit:
            break
    found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in ids], lane=Lane.IDLE)
    return [item["job_id"] for item in found if item is not None and item.get("expires_at", now + 1) <= now]


# release


async def release(session: Session, now: Instant, limit: int) -> int:
    """Continue work from its marks, then unpark jobs for unused room."""
    done = await go_on(session, now, limit)
    await sweep(session, now)
    unparked = await parking.unpark_marked_keys(session, now) + await parking.unpark_marked_rates(session, now)
    if unparked:
        session.board.committed({Signal.READY})
    return done + unparked


PRICES_OF = "us-east-1, November 2024"
WRITES_PER_MILLION = 0.625  # dollars for a million write units
READS_PER_MILLION = 0.125


class Step(msgspec.Struct, frozen=True):
    """The writes of one step of a plain job with a small payload (see schema.py): the item, and each index entry that
    is added, removed or changed; an entry that changes its key counts twice."""

    entries: int
    counted: bool  # a counter is in the same commit, shared by all its jobs


SUBMIT = Step(entries=3, counted=True)  # by state, by type, ready
CLAIM = Step(entries=5, counted=False)  # by state moves, by worker, no longer ready, by time
COMPLETE = Step(entries=5, counted=True)  # by state and by worker move, no longer by time
READ_UNITS_OF_JOB = 2.5

# Read units of an idle worker: the board and the head of each lane per poll; due jobs, expired leases, marks and other
# workers per sweep.
POLL_UNITS = 1.0
LANE_UNITS = 0.5
SWEEP_UNITS = 10.0
WAKE_UNITS = 0.5  # a read of the board
BEAT_UNITS = 1.0  # write units, three times per lease

_SECONDS_OF_DAY = 86_400


class Range(msgspec.Struct, frozen=True):
    least: float
    most: float

    def __str__(self) -> str:
        return f"${self.least:.2f} to ${self.most:.2f}"


def units_of_job(batch: int) -> Range:
    """Return the write units of a job from submit to completion, if this many are batched."""
    return Range(_units(batch, entry=1), _units(batch, entry=2))


def _units(batch: int, *, entry: int) -> float:
    total = 0.0
    for step in (SUBMIT, CLAIM, COMPLETE):
        in_transaction = batch > 1 or step.counted  # a single job is claimed by a plain update
        total += 2 + entry * step.entries if in_transaction else 1 + step.entries
        total += 2 / batch if step.counted else 0
    return total


def dollars(units: Range) -> Range:
    """Return the cost of a million jobs with this many write units each."""
    reads = READ_UNITS_OF_JOB * READS_PER_MILLION
    return Range(units.least * WRITES_PER_MILLION + reads, units.most * WRITES_PER_MILLION + reads)


def dollars_of_idle_day(lanes: int, poll_seconds: float, wake_ceiling: float) -> float:
    """Return the cost of an idle worker per day, for this many queues and types."""
    polls = (POLL_UNITS + LANE_UNITS * lanes + SWEEP_UNITS) / poll_seconds + WAKE_UNITS / wake_ceiling
    beats = BEAT_UNITS / renewal_seconds(LEASE_SECONDS)
    return (polls * READS_PER_MILLION + beats * WRITES_PER_MILLION) * _SECONDS_OF_DAY / 1_000_000


SKEW_SECONDS_WARN = 1.0
SKEW_SECONDS_BAD = 2.0
MARK_SECONDS_WARN = 300  # the next sweep finishes the work of a mark, unless no process sweeps
_MARKS_MAX = 100


async def diagnose(session: Session, now: Instant) -> list[Finding]:
    billings: list[str] = []
    findings = []
    for table in Table:
        findings += await _table(session, table, billings)
    findings.append(await _schema(session))
    findings.append(_clock(session))
    findings.append(await _outbox(session, now))
    findings.append(await _sweeps(session, now))
    findings.append(_costs("provisioned" in billings, session.board.ceiling_seconds))
    return findings


async def _table(session: Session, table: Table, billings: list[str]) -> list[Finding]:
    name = session.tables.names[table]
    check = f"table {table.value}"
    try:
        reply = await session.tables.call("DescribeTable", {"TableName": name})
    except BackstayError as error:
        return [
            Finding(
                check,
                "warn",
                f"{name} cannot be described: {error}",
                "allow dynamodb:DescribeTable, or check it in the console",
            )
        ]
    described: dict[str, Any] = reply["Table"]
    status = described.get("TableStatus", "ACTIVE")
    billing = described.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED").lower().replace("_", " ")
    billings.append(billing)
    items, size = described.get("ItemCount", 0), described.get("TableSizeBytes", 0)
    says = f"{name}: {status.lower()}, {billing}, about {count(items, 'item')}, {size / 2**20:,.1f} MiB"
    if described.get("Replicas"):
        return [
            Finding(check, "bad", f"{name} is a global table", "remove its replicas: a job could run in two regions")
        ]
    if status not in ("ACTIVE", "UPDATING"):
        return [Finding(check, "bad", says, "wait until it is active, or check it in the console")]
    findings = [Finding(check, "ok", says), *await _time_to_live(session, name)]
    if table is Table.JOBS:
        findings.append(_indexes(described))
    return findings


async def _time_to_live(session: Session, name: str) -> list[Finding]:
    """Check that time to live is off: DynamoDB would delete jobs on its own, without history and under running
    workers."""
    try:
        reply = await session.tables.call("DescribeTimeToLive", {"TableName": name})
    except BackstayError:
        return []  # no permission to ask: most roles that may describe a table lack it
    described = reply.get("TimeToLiveDescription", {})
    if described.get("TimeToLiveStatus", "DISABLED") not in ("ENABLED", "ENABLING"):
        return []
    says = f"{name} has a time to live by {described.get('AttributeName')!r}: items can vanish under the queue"
    return [Finding("time to live", "bad", says, "turn it off: retention removes old jobs")]


def _indexes(described: dict[str, Any]) -> Finding:
    there = {
        each["IndexName"]: each.get("IndexStatus", "ACTIVE") for each in described.get("GlobalSecondaryIndexes", ())
    }
    missing = sorted(set(INDEXES) - set(there))
    if missing:
        return Finding("indexes", "bad", f"missing: {', '.join(missing)}", 'run "backstay migrate"')
    building = sorted(name for name, status in there.items() if status not in ("ACTIVE", "UPDATING"))
    if building:
        return Finding("indexes", "warn", f"being created: {', '.join(building)}", "wait until they are active")
    return Finding("indexes", "ok", f"all {len(INDEXES)} are there and active")


async def _schema(session: Session) -> Finding:
    [schema] = await session.tables.get(Table.RECORDS, [dynamodb_schema.SCHEMA_KEY])
    stored = None if schema is None else schema["number"]
    if schema is None or stored != SCHEMA:
        return Finding("schema", "bad", f"version {stored}; this release needs {SCHEMA}", 'run "backstay migrate"')
    return Finding("schema", "ok", f"version {stored}, {count(schema['shards'], 'shard')}")


def _clock(session: Session) -> Finding:
    skew = session.tables.wire.skew_seconds
    if skew is None:
        return Finding("server clock", "ok", "not enough replies from DynamoDB yet to compare clocks")
    says = f"{abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} DynamoDB's"
    if abs(skew) > SKEW_SECONDS_BAD:
        return Finding("server clock", "bad", says, "correct this machine's clock: nothing is claimed until then")
    if abs(skew) > SKEW_SECONDS_WARN:
        return Finding("server clock", "warn", says, "synchronise this machine's clock with NTP")
    return Finding("server clock", "ok", says)


async def _outbox(session: Session, now: Instant) -> Finding:
    oldest: Instant | None = None
    marks = 0
    async for mark in outbox.marks(session.tables, _MARKS_MAX):
        marks += 1
        oldest = mark.at if oldest is None else min(oldest, mark.at)
    if oldest is None:
        return Finding("outbox", "ok", "no unfinished commits")
    age = max(0, now - oldest) // MICROS
    says = f"{count(marks, 'unfinished commit')}, the oldest {age:,} s old"
    if age > MARK_SECONDS_WARN:
        return Finding("outbox", "warn", says, "start a worker: its maintenance finishes them")
    return Finding("outbox", "ok", says)


async def _sweeps(session: Session, now: Instant) -> Finding:
    [turn] = await session.tables.get(Table.RECORDS, [dynamodb_schema.turn("sweep")], lane=Lane.IDLE)
    if turn is None:
        return Finding("sweep", "ok", "no worker has run a sweep yet")
    return Finding("sweep", "ok", f"last {max(0, now - turn['taken_at']) // MICROS:,} s ago")


def _costs(provisioned: bool, wake_ceiling: float) -> Finding:
    """Report costs as a range: it is unknown whether Amazon counts index entries twice in transactions."""
    alone, together = units_of_job(1), units_of_job(50)
    units = Range(min(alone.least, together.least), max(alone.most, together.most))
    if provisioned:
        says = (
            f"provisioned capacity is paid for whether it is used or not; a million plain jobs write"
            f" {units.least:.0f} to {units.most:.0f} million units"
        )
        return Finding("costs", "ok", says)
    jobs, idle = dollars(units), dollars_of_idle_day(4, 30, wake_ceiling)
    says = (
        f"a million plain jobs cost {jobs}, an idle worker ${idle:.3f} a day"
        f" (on demand at the prices of {PRICES_OF}; Amazon does not document whether index entries count twice)"
    )
    return Finding("costs", "ok", says)

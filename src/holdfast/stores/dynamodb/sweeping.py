"""The backstop: costly looks that one process takes for the whole fleet, a page at a time.

Nothing here is needed while everything goes as it should. It finds what an index has lost, what is parked without a
mark, ice without a mark, and texts that nobody names because their commit never came.
"""

from __future__ import annotations

import contextlib
import logging
import random
import uuid

from holdfast.clock import MICROS, Instant
from holdfast.lifecycle import Status
from holdfast.stores.dynamodb import bodies, gates, keys, parking, rating, retiring_trees, taking_turns
from holdfast.stores.dynamodb.admitting import bucket_of
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import change, delete, update
from holdfast.stores.dynamodb.expressions import equals, present
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import READY, TIME, Index, Key, Table
from holdfast.stores.dynamodb.table import Failed, bare
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

log = logging.getLogger("holdfast.stores.dynamodb")

TURN_MICROS = 60 * MICROS  # between two pages, whoever reads them
PAGE = 500
LATE_MICROS = 600 * MICROS  # what stands still for so long is looked up in its index
LITTER_MICROS = 24 * 3600 * MICROS
_LOOKED_UP_MAX = 50  # of one page
_OF_A_JOB = ("body|", "step|", "edge|", "needs|", "kid|", "staged|")
_NAMES = ("job_id", "status", "body", "result_body", "artifacts_body")


async def sweep(ground: Ground, now: Instant) -> None:
    """One page of each table, if it is time and nobody else has taken the turn."""
    if not await _take_turn(ground, now):
        return
    board = await ground.board.read(fresh=False)
    await taking_turns.forget_idle(ground, board.fair, now)
    await parking.drop_dead_holders(ground, now)
    for table in Table:
        await _sweep_page(ground, table, now)


async def _take_turn(ground: Ground, now: Instant) -> bool:
    place = keys.turn("sweep")
    [last] = await ground.tables.get(Table.RECORDS, [place], lane=Lane.IDLE)
    taken_at = None if last is None else last["taken_at"]
    if taken_at is not None and abs(now - taken_at) < TURN_MICROS:
        return False
    sets = {"taken_at": now, "by": ground.writer}
    try:
        await ground.tables.update(
            update(Table.RECORDS, place, sets=sets, condition=equals("taken_at", taken_at)), lane=Lane.IDLE
        )
    except Failed:
        return False
    return True


async def _sweep_page(ground: Ground, table: Table, now: Instant) -> None:
    place = keys.turn(f"scan {table.value}")
    [last] = await ground.tables.get(Table.RECORDS, [place], lane=Lane.IDLE)
    start = None if last is None else last.get("at")
    rest = int(ground.tables.wire.address.sweep_hours * 3600) * MICROS  # between two walks through a table
    if start is None and last is not None and abs(now - last["ended_at"]) < rest:
        return
    rows, then = await ground.tables.scan(table, start=start, page=PAGE, lane=Lane.IDLE)
    if table is Table.JOBS:
        await _look_at_jobs(ground, rows, now)
    else:
        await _look_at_records(ground, rows, now)
    if then is None:
        write = update(Table.RECORDS, place, sets={"ended_at": now}, removes=("at",))
    else:
        write = update(Table.RECORDS, place, sets={"at": then, "ended_at": 0})
    await ground.tables.update(write, lane=Lane.IDLE)


# Jobs


async def _look_at_jobs(ground: Ground, rows: list[Item], now: Instant) -> None:
    late: list[tuple[Item, Item]] = []
    for row in rows:
        item = bare(row)
        if "archived_at" in item:
            continue
        if keys.derived(item, ground.shards) != {name: row[name] for name in keys.DERIVED if name in row}:
            await _derive_anew(ground, item)
        elif _is_late(item, now):
            late.append((row, item))
        if "parked" in item:
            await _mark(ground, item, now)
        if "frozen" in item:
            await retiring_trees.thaw(ground, item, now)
    for row, item in random.sample(late, min(len(late), _LOOKED_UP_MAX)):  # not the same ones at every walk
        await _look_up(ground, row, item)


def _is_late(item: Item, now: Instant) -> bool:
    """Whether something should have happened to it long ago. Its worker or its queue may have stopped; or an index has
    lost it."""
    match Status(item["status"]):
        case Status.PENDING:
            return "parked" not in item and bool(item["updated_at"] < now - LATE_MICROS)
        case Status.SCHEDULED | Status.RETRYING:
            return bool(item["scheduled_for"] < now - LATE_MICROS)
        case Status.PROCESSING:
            return bool(item["lease_expires_at"] < now - LATE_MICROS)
        case _:
            return False


async def _look_up(ground: Ground, row: Item, item: Item) -> None:
    index: Index = READY if item["status"] == Status.PENDING else TIME
    ask = Ask(table=Table.JOBS, index=index.name, hash=row[index.hash], begins=row[index.range])
    if await ground.tables.count(ask, stop_at=1, lane=Lane.IDLE):
        return
    log.warning("%s is not in %s, where it should be: put there again", item["job_id"], index.name)
    standing = equals("version", item["version"])
    gone = update(Table.JOBS, (item["job_id"],), removes=(index.hash, index.range), condition=standing)
    with contextlib.suppress(Failed):
        await ground.tables.update(gone, lane=Lane.IDLE)
        await _derive_anew(ground, item)


async def _derive_anew(ground: Ground, item: Item) -> None:
    also = equals("parked", item.get("parked")) & equals("lease_expires_at", item.get("lease_expires_at"))
    with contextlib.suppress(Failed):
        await ground.tables.update(change(item, item, also=also), lane=Lane.IDLE)


async def _mark(ground: Ground, item: Item, now: Instant) -> None:
    """Whatever is parked has to be looked at again."""
    bucket = bucket_of(item)
    if item["parked"] == parking.BY_KEY:
        await parking.mark_keys(ground, [item], now)
    elif bucket is not None:
        states = await gates.read(ground.tables, [item], now, Lane.IDLE)
        await rating.mark(ground, states.rates, bucket, 0, now)


# Records


async def _look_at_records(ground: Ground, rows: list[Item], now: Instant) -> None:
    await _remove_litter(ground, [row for row in rows if row["pk"].startswith(_OF_A_JOB)], now)
    for row in rows:
        if row["pk"].startswith("gate|r|") and row["full_at"] < now - LITTER_MICROS and "due_at" not in row:
            await _delete_unchanged(ground, row)  # a full bucket is as good as none
    old = [row for row in rows if row["pk"].startswith("gate|q|") and row.get("at", now) < now - LITTER_MICROS]
    await ground.tables.delete_many(Table.RECORDS, [(row["pk"], row["sk"]) for row in old], lane=Lane.IDLE)


async def _remove_litter(ground: Ground, rows: list[Item], now: Instant) -> None:
    """What lies around jobs that are nowhere: their commit never came, or whoever retired them died; and texts that a
    job does not name, because the commit which would have named them failed."""
    ids = sorted({_job_of(row) for row in rows})
    found = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in ids], only=_NAMES, lane=Lane.IDLE)
    jobs = {job_id: item for job_id, item in zip(ids, found, strict=True) if item is not None and "status" in item}
    litter: list[Key] = []
    for row in rows:
        if not _is_unnamed(row, jobs.get(_job_of(row)), now):
            continue
        if not str(row["pk"]).startswith("body|"):
            litter.append((row["pk"], row["sk"]))
        elif "unnamed_at" not in row:
            await _suspect(ground, row, now)
        elif row["unnamed_at"] < now - LITTER_MICROS:
            litter.append((row["pk"], row["sk"]))
    if litter:
        log.info("%d records that nobody names are removed", len(litter))
        await ground.tables.delete_many(Table.RECORDS, litter, lane=Lane.IDLE)


async def _suspect(ground: Ground, row: Item, now: Instant) -> None:
    """A text is put before the commit that names it. How old it is nothing tells: neither its job's id, which a caller
    may have made long ago, nor the job, which may run for days. So it is litter where a later walk finds it unnamed."""
    mark = update(Table.RECORDS, (row["pk"], row["sk"]), sets={"unnamed_at": now}, condition=present("pk"))
    with contextlib.suppress(Failed):
        await ground.tables.update(mark, lane=Lane.IDLE)


def _is_unnamed(row: Item, job: Item | None, now: Instant) -> bool:
    kind = str(row["pk"]).partition("|")[0]
    if kind == "body":
        return job is None or (row["pk"], row["sk"]) not in bodies.names_of(job)
    return job is None and _is_old(_job_of(row), now) and not (kind == "edge" and "met" not in row)


def _job_of(row: Item) -> str:
    return str(row["pk"]).split("|")[1]


def _is_old(job_id: str, now: Instant) -> bool:
    """An id tells its age; one that does not is left alone."""
    try:
        number = uuid.UUID(job_id)
    except ValueError:
        return False
    return number.version == 7 and (number.int >> 80) * 1_000 < now - LITTER_MICROS


async def _delete_unchanged(ground: Ground, row: Item) -> None:
    with contextlib.suppress(Failed):
        await ground.tables.update(
            delete(Table.RECORDS, (row["pk"], row["sk"]), equals("nonce", row["nonce"])), lane=Lane.IDLE
        )

"""The output of running jobs on DynamoDB: an item for each part, in a partition of the job.

The write of a part checks the claim in the same transaction. That of the first part of a take also marks the job, so
that retention looks for output only where there is some; then it deletes what older takes have written. Readers look
for the latest take, so they do not depend on that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from backstay.clock import Instant
from backstay.core.output import OutputEnd, OutputPart, OutputPlace, StoredPart
from backstay.core.records import Signal, Verdict
from backstay.engines.dynamodb import holder, schema
from backstay.engines.dynamodb.commit import Cancelled, Commit
from backstay.engines.dynamodb.expressions import Ask, check, put_new, update
from backstay.engines.dynamodb.schema import Item, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.transport import Lane
from backstay.errors import StoreError


async def append(session: Session, parts: Sequence[OutputPart], now: Instant) -> list[Verdict]:
    turn = asyncio.Semaphore(holder.TOGETHER)

    async def one(part: OutputPart) -> Verdict:
        async with turn:
            return await _append(session, part, now)

    verdicts = list(await asyncio.gather(*map(one, parts)))
    if Verdict.APPLIED in verdicts:
        session.board.committed({Signal.OUTPUT})
    return verdicts


async def _append(session: Session, part: OutputPart, now: Instant) -> Verdict:
    hold = part.hold
    begins = part.first == 1
    commit = Commit(session.tables, "append_output", now)
    commit.write(
        put_new(Table.RECORDS, item_of(hold.job_id, _stored(part, now))),
        update(Table.JOBS, (hold.job_id,), sets={"streamed": hold.attempt}, condition=holder.holds(hold))
        if begins
        else check(Table.JOBS, (hold.job_id,), holder.holds(hold)),
    )
    try:
        await commit.run(Lane.URGENT)
    except Cancelled:
        return await holder.verdict(session, hold)  # it does not hold, or this is a repeat
    if begins and (hold.attempt > 1 or part.take):
        with contextlib.suppress(StoreError):
            await _delete_older(session, hold.job_id, schema.output_take(hold.attempt, part.take))
    return Verdict.APPLIED


async def _delete_older(session: Session, job_id: str, take: str) -> None:
    ask = Ask(table=Table.RECORDS, hash=schema.output(job_id), below=take, only=("pk", "sk"), consistent=True)
    older = [(row["pk"], row["sk"]) async for row in session.tables.ask(ask, lane=Lane.IDLE)]
    await session.tables.delete_many(Table.RECORDS, older, lane=Lane.IDLE)


def _stored(part: OutputPart, now: Instant) -> StoredPart:
    return StoredPart(part.hold.attempt, part.take, part.first, part.last, part.size, now, part.text)


def item_of(job_id: str, part: StoredPart) -> Item:
    pk, sk = schema.output_part(job_id, part.attempt, part.take, part.last)
    return {"pk": pk, "sk": sk, **{name: getattr(part, name) for name in StoredPart.__struct_fields__}}


def part_of(item: Item) -> StoredPart:
    return StoredPart(*(item[name] for name in StoredPart.__struct_fields__))


async def read(session: Session, job_id: str, after: OutputPlace, limit: int) -> list[StoredPart]:
    last = await end(session, job_id)
    if last is None:
        return []
    attempt, take, _ = last.place
    number = after.number if after.is_same_take(last.place) else 0
    ask = Ask(
        table=Table.RECORDS,
        hash=schema.output(job_id),
        begins=schema.output_take(attempt, take),
        above=schema.output_part(job_id, attempt, take, number)[1],
        page=limit,
        consistent=True,
    )
    return [part_of(item) for item in await session.tables.first(ask, limit)]


async def end(session: Session, job_id: str) -> OutputEnd | None:
    ask = Ask(
        table=Table.RECORDS,
        hash=schema.output(job_id),
        backwards=True,
        page=1,
        only=("attempt", "take", "last", "size"),
        consistent=True,
    )
    for item in await session.tables.first(ask, 1):
        return OutputEnd(OutputPlace(item["attempt"], item["take"], item["last"]), item["size"])
    return None

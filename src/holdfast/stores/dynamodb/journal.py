"""Inserts that are larger than one commit: the batch is written down, accepted by one commit, and stored in slices.

    parts of the journal ──▶ commit point: outbox mark (and the queues' gates) ──▶ slices ──▶ mark and parts are removed

A crash before the commit point leaves parts that mean nothing; after it, `release` of any store stores what is missing.
While slices run, a reader may see some of the batch; never after the answer, and never for good.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from holdfast import failpoints
from holdfast.clock import Instant
from holdfast.errors import HoldfastError
from holdfast.store.types import Inserted, NewJob
from holdfast.stores.dynamodb import answering, gates, items, keys, outbox, storing
from holdfast.stores.dynamodb.commit import Cancelled, Commit, Write
from holdfast.stores.dynamodb.deciding import Decided, decide
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Key, Table
from holdfast.stores.dynamodb.looking import look
from holdfast.stores.dynamodb.rounds import Rounds
from holdfast.stores.dynamodb.wire import Lane

log = logging.getLogger("holdfast.stores.dynamodb")

PART_BYTES = 300_000  # an item ends at 400 KB
PLAIN_SLICE = 90
SPECIAL_SLICE = 30  # each with an edge or a guard, and as a child with its place in the list of these
SLICES_TOGETHER = 4  # of plain jobs, which do not depend on one another

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[NewJob])


async def insert(
    ground: Ground, jobs: Sequence[NewJob], now: Instant, *, verb: str, also: Sequence[Write]
) -> list[Inserted]:
    wid = items.new_wid()
    whole = _encoder.encode(list(jobs))
    parts = [whole[start : start + PART_BYTES] for start in range(0, len(whole), PART_BYTES)]
    mark = outbox.new_mark(outbox.MarkKind.INSERT, wid, now, parts=len(parts))
    decided = await _decide(ground, jobs, now, wid)  # what is refused need not be written down
    await ground.tables.put_many(Table.RECORDS, [_part(wid, n, part) for n, part in enumerate(parts)])
    answers = await _accept(ground, jobs, decided, now, verb, mark, also)
    failpoints.hit("journal.between")
    try:
        answers = await _store(ground, jobs, now, wid, again=False)
        await _finish(ground, mark, len(parts))
    except HoldfastError as error:
        log.warning("a batch of %d jobs is accepted, and upkeep stores the rest of it: %s", len(jobs), error)
    return answers


async def _decide(ground: Ground, jobs: Sequence[NewJob], now: Instant, wid: str) -> Decided:
    decided = decide(jobs, await look(ground, jobs), now, wid)
    await storing.refuse(ground, decided, now)
    return decided


async def _accept(
    ground: Ground,
    jobs: Sequence[NewJob],
    decided: Decided,
    now: Instant,
    verb: str,
    mark: outbox.Mark,
    also: Sequence[Write],
) -> list[Inserted]:
    """The commit point: from here on the batch is in, whoever stores it. Answers as it was decided."""
    rounds = Rounds(verb)
    while True:
        found = await answering.existing(ground, decided)
        commit = Commit(ground.tables, verb, now)
        commit.write(outbox.written(mark), *also)
        commit.write(*await gates.queue_room(ground, decided.pending, now, journal=mark.name))
        gates.refuse_moved(await ground.board.read(fresh=False), jobs)
        try:
            await commit.run(Lane.USUAL)
        except Cancelled as cancelled:
            for write in also:
                if (write.table, write.key) in cancelled.failed:
                    raise storing.ElseRefused from None
            await rounds.again()
            decided = await _decide(ground, jobs, now, mark.name)
            continue
        return answering.answers(decided, found)


async def go_on(ground: Ground, mark: outbox.Mark, now: Instant) -> int:
    """Store what is missing of a batch whose inserter has died, or is slow; how many jobs it has."""
    if not outbox.is_left(mark, now):
        return 0
    places = [keys.journal(mark.name, number) for number in range(mark.item["parts"])]
    found = await ground.tables.get(Table.RECORDS, places)
    if any(part is None for part in found):
        return 0  # whoever removed a part has stored all
    jobs = _decoder.decode(b"".join(part["part"] for part in found if part is not None))
    await _store(ground, jobs, mark.at, mark.name, again=True)
    await _finish(ground, mark, len(places))
    return len(jobs)


def _part(wid: str, number: int, part: bytes) -> dict[str, object]:
    pk, sk = keys.journal(wid, number)
    return {"pk": pk, "sk": sk, "part": part}


async def _store(ground: Ground, jobs: Sequence[NewJob], now: Instant, wid: str, *, again: bool) -> list[Inserted]:
    if any(job.special for job in jobs):
        return await store_in_order(ground, jobs, now, wid, SPECIAL_SLICE, again=again)
    slices = [jobs[start : start + PLAIN_SLICE] for start in range(0, len(jobs), PLAIN_SLICE)]
    answers: list[Inserted] = []
    for start in range(0, len(slices), SLICES_TOGETHER):
        group = slices[start : start + SLICES_TOGETHER]
        for stored in await asyncio.gather(
            *(store_in_order(ground, each, now, wid, PLAIN_SLICE, again=again) for each in group)
        ):
            answers += stored
    return answers


async def store_in_order(
    ground: Ground, jobs: Sequence[NewJob], now: Instant, wid: str, most: int, *, again: bool, verb: str = "insert"
) -> list[Inserted]:
    answers: list[Inserted] = []
    size = most
    while len(answers) < len(jobs):
        start = len(answers)
        try:
            answers += await storing.store(
                ground, jobs[start : start + size], now, verb=verb, promised=storing.Promised(wid, again)
            )
        except storing.TooLarge:
            size = max(1, size // 2)
    return answers


async def _finish(ground: Ground, mark: outbox.Mark, parts: int) -> None:
    """The mark goes first: parts without one mean nothing, a mark without parts would."""
    await outbox.finish(ground.tables, mark)
    places: list[Key] = [keys.journal(mark.name, number) for number in range(parts)]
    await ground.tables.delete_many(Table.RECORDS, places)

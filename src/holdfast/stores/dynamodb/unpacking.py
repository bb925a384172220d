"""Children that were written down before the settlement which brings them, and are stored after it.

    pieces under (job, attempt) ──▶ the settlement, with a mark and a hold ──▶ slices of them ──▶ mark and hold go

The hold is one more open child than there are: until the last is stored the parent does not go on. Pieces of an attempt
that came to nothing have no such mark: the one that was put when they were staged says where they lie.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from holdfast import failpoints
from holdfast.clock import Instant
from holdfast.lifecycle import Status
from holdfast.limits import RELEASE_BATCH_MAX
from holdfast.store.types import NewJob, Signal
from holdfast.stores.dynamodb import bodies, broods, following, journal, keys, outbox
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.commit import Cancelled, Commit, Write, add, delete, update
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Key, Table
from holdfast.stores.dynamodb.outbox import Mark, MarkKind
from holdfast.stores.dynamodb.plan import Plan
from holdfast.stores.dynamodb.rounds import Rounds
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane
from holdfast.trees import Brood

PIECE_BYTES = 300_000  # an item ends at 400 KB
HELD = Brood(open=1)
_LET_GO = Brood(open=-1)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[NewJob])


# Writing down


async def put_part(ground: Ground, job_id: str, attempt: int, part: int, jobs: Sequence[NewJob]) -> None:
    """A part that is put again is replaced: pieces beyond those that the first one names mean nothing."""
    whole = _encoder.encode(list(jobs))
    pieces = [whole[start : start + PIECE_BYTES] for start in range(0, len(whole), PIECE_BYTES)]
    rows = []
    for number, piece in enumerate(pieces):
        pk, sk = keys.staged_piece(job_id, attempt, part, number)
        rows.append({"pk": pk, "sk": sk, "piece": piece, "pieces": len(pieces)})
    await ground.tables.put_many(Table.RECORDS, rows)


def noted(job_id: str, attempt: int, part: int | None, now: Instant) -> Write:
    """The mark that says where pieces of an attempt lie, and which parts are whole."""
    mark = outbox.new_mark(MarkKind.STAGED, _name(job_id, attempt), now, job_id=job_id, attempt=attempt)
    said = {name: value for name, value in mark.item.items() if name not in ("pk", "sk")}
    whole = None if part is None else {"parts": {str(part)}}
    return update(Table.RECORDS, outbox.place(mark.kind, mark.name), sets=said, adds=whole)


async def parts_of(ground: Ground, job_id: str, attempt: int) -> set[str]:
    [mark] = await ground.tables.get(Table.RECORDS, [outbox.place(MarkKind.STAGED, _name(job_id, attempt))])
    return set() if mark is None else set(mark.get("parts", ()))


# The settlement


def due(job_id: str, attempt: int, parts: int, now: Instant) -> Mark:
    """The settlement names so many parts: others of the same attempt are of a call that came to nothing."""
    name = _name(job_id, attempt)
    return outbox.new_mark(MarkKind.UNPACK, name, now, job_id=job_id, attempt=attempt, parts=parts)


def held(mark: Mark) -> list[Write]:
    """What goes into the settlement: the mark, and the hold on the parent."""
    return [outbox.written(mark), add(Table.JOBS, (mark.item["job_id"],), {"open": HELD.open})]


# Storing


async def go_on(ground: Ground, mark: Mark, now: Instant, limit: int) -> int:
    """Where who settled the parent has died, or is slow."""
    return await unpack(ground, mark, now, limit) if outbox.is_left(mark, now) else 0


async def unpack(ground: Ground, mark: Mark, now: Instant, limit: int) -> int:
    """Store children of a settled job, part by part; how many. From `limit` on the rest is left to others."""
    failpoints.hit("unpack.before")
    done = 0
    async for part, jobs, places in _parts(ground, mark):
        if done >= limit:
            await outbox.hand_over(ground.tables, mark)
            ground.board.committed({Signal.UNFINISHED})
            return done
        if part >= mark.item["parts"]:
            jobs = []
        most = journal.SPECIAL_SLICE
        await journal.store_in_order(ground, jobs, mark.at, mark.nonce, most, again=True, verb="unpack")
        failpoints.hit("unpack.between")
        await ground.tables.delete_many(Table.RECORDS, places)
        done += len(jobs)
    await _finish(ground, mark, now)
    return max(1, done)


async def _parts(ground: Ground, mark: Mark) -> AsyncIterator[tuple[int, list[NewJob], list[Key]]]:
    """Each part that is left, and where it lies."""
    ask = Ask(table=Table.RECORDS, hash=keys.staged(mark.item["job_id"], mark.item["attempt"]), consistent=True)
    rows: list[Item] = []
    async for row in ground.tables.ask(ask):
        if rows and _part_of(row) != _part_of(rows[0]):
            yield _part_of(rows[0]), _jobs(rows), [(each["pk"], each["sk"]) for each in rows]
            rows = []
        rows.append(row)
    if rows:
        yield _part_of(rows[0]), _jobs(rows), [(each["pk"], each["sk"]) for each in rows]


def _part_of(row: Item) -> int:
    return int(row["sk"].partition(".")[0])


def _jobs(rows: Sequence[Item]) -> list[NewJob]:
    """None where pieces are missing: who stored them all is removing them."""
    wanted: int = rows[0]["pieces"]
    if not rows[0]["sk"].endswith(".00") or len(rows) < wanted:
        return []
    return _decoder.decode(b"".join(row["piece"] for row in rows[:wanted]))


async def _finish(ground: Ground, mark: Mark, now: Instant) -> None:
    """All are stored: the hold goes, and with it perhaps the last that its parent waited for."""
    rounds = Rounds("unpack")
    while True:
        made = Plan()
        made.count(mark.item["job_id"], _LET_GO)
        await broods.settle(ground, made, now)
        commit = Commit(ground.tables, "unpack", now)
        made.into(commit)
        commit.write(outbox.finished(mark), delete(Table.RECORDS, outbox.place(MarkKind.STAGED, mark.name)))
        await bodies.put(ground.tables, made.texts)
        try:
            await commit.run(Lane.USUAL)
        except Cancelled as cancelled:
            if (Table.RECORDS, outbox.place(mark.kind, mark.name)) in cancelled.failed:
                return  # another has finished it
            await rounds.again()
            continue
        ground.board.committed(commit.signals)
        await following.go_on(ground, made.marks, now, RELEASE_BATCH_MAX)
        return


# What came to nothing


async def clear(ground: Ground, mark: Mark) -> int:
    """Remove what an attempt staged that is over and whose settlement did not name it."""
    job_id, attempt = mark.item["job_id"], mark.item["attempt"]
    [job] = await ground.tables.get(Table.JOBS, [(job_id,)])
    if job is not None and (job.get("status"), job.get("attempt")) == (Status.PROCESSING, attempt):
        return 0
    # In this order: what the settlement named has its mark from that moment on, until all is stored.
    [due_mark] = await ground.tables.get(Table.RECORDS, [outbox.place(MarkKind.UNPACK, mark.name)])
    if due_mark is not None:
        return 0
    ask = Ask(table=Table.RECORDS, hash=keys.staged(job_id, attempt), only=("pk", "sk"), consistent=True)
    places: list[Key] = [(row["pk"], row["sk"]) async for row in ground.tables.ask(ask, lane=Lane.IDLE)]
    await ground.tables.delete_many(Table.RECORDS, places, lane=Lane.IDLE)
    await outbox.finish(ground.tables, mark)
    return 1


def _name(job_id: str, attempt: int) -> str:
    return f"{job_id}|{attempt}"

"""Children of running jobs on DynamoDB: stored at once, with the parent's settlement, or staged before it.

    pieces under (job, attempt) ──▶ the settlement, with a mark and a hold ──▶ slices of them ──▶ mark and hold go

The settlement creates the children, so nothing of it is committed if one of them cannot be stored. The hold is one more
open child than there are: until the last is stored the parent does not proceed. Pieces of an attempt that failed have
no such mark: the one that was written when they were staged says where they are.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from backstay import failpoints
from backstay.clock import Instant
from backstay.core.dependencies import Brood
from backstay.core.records import Hold, Inserted, NewJob, Page, Signal, Transition, Verdict
from backstay.core.states import Status
from backstay.engines.dynamodb import dependencies, holder, insert, insert_decision, items, outbox, plan, read, schema
from backstay.engines.dynamodb import transitions as dynamodb_transitions
from backstay.engines.dynamodb.commit import Cancelled, Commit, Rounds
from backstay.engines.dynamodb.expressions import Ask, Write, add, check, delete, update
from backstay.engines.dynamodb.insert import ElseRefused
from backstay.engines.dynamodb.insert_decision import Decided, Looked, decide
from backstay.engines.dynamodb.outbox import Mark, MarkKind
from backstay.engines.dynamodb.plan import Plan
from backstay.engines.dynamodb.schema import Item, Key, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.transitions import Moved
from backstay.engines.dynamodb.transport import Lane
from backstay.errors import EffectFailed
from backstay.limits import RELEASE_BATCH_MAX

PIECE_BYTES = 300_000  # an item holds 400 KB
HELD = Brood(open=1)
_LET_GO = Brood(open=-1)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[NewJob])


# Staging


async def put_part(session: Session, job_id: str, attempt: int, part: int, jobs: Sequence[NewJob]) -> None:
    """Store a part; a repeat replaces it. Pieces beyond those that the first one names are ignored."""
    whole = _encoder.encode(list(jobs))
    pieces = [whole[start : start + PIECE_BYTES] for start in range(0, len(whole), PIECE_BYTES)]
    rows = []
    for number, piece in enumerate(pieces):
        pk, sk = schema.staged_piece(job_id, attempt, part, number)
        rows.append({"pk": pk, "sk": sk, "piece": piece, "pieces": len(pieces)})
    await session.tables.put_many(Table.RECORDS, rows)


def noted(job_id: str, attempt: int, part: int | None, now: Instant) -> Write:
    """Return the mark that says where pieces of an attempt are, and which parts are complete."""
    mark = outbox.new_mark(MarkKind.STAGED, _name(job_id, attempt), now, job_id=job_id, attempt=attempt)
    said = {name: value for name, value in mark.item.items() if name not in ("pk", "sk")}
    whole = None if part is None else {"parts": {str(part)}}
    return update(Table.RECORDS, outbox.place(mark.kind, mark.name), sets=said, adds=whole)


async def parts_of(session: Session, job_id: str, attempt: int) -> set[str]:
    [mark] = await session.tables.get(Table.RECORDS, [outbox.place(MarkKind.STAGED, _name(job_id, attempt))])
    return set() if mark is None else set(mark.get("parts", ()))


# The settlement


def due(job_id: str, attempt: int, parts: int, now: Instant) -> Mark:
    """Return the mark of a settlement, which names this many parts; other parts of the attempt belong to a failed
    call."""
    name = _name(job_id, attempt)
    return outbox.new_mark(MarkKind.UNPACK, name, now, job_id=job_id, attempt=attempt, parts=parts)


def held(mark: Mark) -> list[Write]:
    """Return the writes of the settlement: the mark, and the hold on the parent."""
    return [outbox.written(mark), add(Table.JOBS, (mark.item["job_id"],), {"open": HELD.open})]


# Storing


async def go_on(session: Session, mark: Mark, now: Instant, limit: int) -> int:
    """Continue from a mark if the process that settled the parent has died or is slow."""
    return await unpack(session, mark, now, limit) if outbox.is_left(mark, now) else 0


async def unpack(session: Session, mark: Mark, now: Instant, limit: int) -> int:
    """Store children of a settled job, part by part; return how many. Beyond `limit` the rest is left to later
    calls."""
    failpoints.hit("unpack.before")
    done = 0
    async for part, jobs, places in _parts(session, mark):
        if done >= limit:
            await outbox.hand_over(session.tables, mark)
            session.board.committed({Signal.UNFINISHED})
            return done
        if part >= mark.item["parts"]:
            jobs = []
        most = insert.SPECIAL_SLICE
        await insert.store_in_order(session, jobs, mark.at, mark.nonce, most, again=True, verb="unpack")
        failpoints.hit("unpack.between")
        await session.tables.delete_many(Table.RECORDS, places)
        done += len(jobs)
    await _finish(session, mark, now)
    return max(1, done)


async def _parts(session: Session, mark: Mark) -> AsyncIterator[tuple[int, list[NewJob], list[Key]]]:
    """Return the parts that are left, each with its location."""
    ask = Ask(table=Table.RECORDS, hash=schema.staged(mark.item["job_id"], mark.item["attempt"]), consistent=True)
    rows: list[Item] = []
    async for row in session.tables.ask(ask):
        if rows and _part_of(row) != _part_of(rows[0]):
            yield _part_of(rows[0]), _jobs(rows), [(each["pk"], each["sk"]) for each in rows]
            rows = []
        rows.append(row)
    if rows:
        yield _part_of(rows[0]), _jobs(rows), [(each["pk"], each["sk"]) for each in rows]


def _part_of(row: Item) -> int:
    return int(row["sk"].partition(".")[0])


def _jobs(rows: Sequence[Item]) -> list[NewJob]:
    """Return the jobs of a part; None if pieces are missing, because another process has stored all of them and is
    removing them."""
    wanted: int = rows[0]["pieces"]
    if not rows[0]["sk"].endswith(".00") or len(rows) < wanted:
        return []
    return _decoder.decode(b"".join(row["piece"] for row in rows[:wanted]))


async def _finish(session: Session, mark: Mark, now: Instant) -> None:
    """Remove the hold once all children are stored; that may be the last thing that the parent waited for."""
    rounds = Rounds("unpack")
    while True:
        made = Plan()
        made.count(mark.item["job_id"], _LET_GO)
        await plan.settle(session, made, now)
        commit = Commit(session.tables, "unpack", now)
        made.into(commit)
        commit.write(outbox.finished(mark), delete(Table.RECORDS, outbox.place(MarkKind.STAGED, mark.name)))
        await items.put(session.tables, made.texts)
        try:
            await commit.run(Lane.USUAL)
        except Cancelled as cancelled:
            if (Table.RECORDS, outbox.place(mark.kind, mark.name)) in cancelled.failed:
                return  # another process has finished it
            await rounds.again()
            continue
        session.board.committed(commit.signals)
        await dependencies.resume(session, made.marks, now, RELEASE_BATCH_MAX)
        return


# Abandoned attempts


async def clear(session: Session, mark: Mark) -> int:
    """Remove what an ended attempt staged and its settlement did not name."""
    job_id, attempt = mark.item["job_id"], mark.item["attempt"]
    [job] = await session.tables.get(Table.JOBS, [(job_id,)])
    if job is not None and (job.get("status"), job.get("attempt")) == (Status.PROCESSING, attempt):
        return 0
    # In this order: named parts have a mark from the settlement on until all are stored.
    [due_mark] = await session.tables.get(Table.RECORDS, [outbox.place(MarkKind.UNPACK, mark.name)])
    if due_mark is not None:
        return 0
    ask = Ask(table=Table.RECORDS, hash=schema.staged(job_id, attempt), only=("pk", "sk"), consistent=True)
    places: list[Key] = [(row["pk"], row["sk"]) async for row in session.tables.ask(ask, lane=Lane.IDLE)]
    await session.tables.delete_many(Table.RECORDS, places, lane=Lane.IDLE)
    await outbox.finish(session.tables, mark)
    return 1


def _name(job_id: str, attempt: int) -> str:
    return f"{job_id}|{attempt}"


async def insert_children(session: Session, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
    # Check the claim first: if it was lost, that is the answer, whatever else is wrong.
    if await holder.verdict(session, hold) is not Verdict.APPLIED:
        return None
    still = check(Table.JOBS, (hold.job_id,), holder.holds(hold))
    try:
        return await insert.insert(session, jobs, now, verb="insert_children", also=[still])
    except ElseRefused:
        return None


async def stage(session: Session, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
    """Stage a part: first the mark, so that pieces are found even after a crash; the part's name last, when it is
    complete."""
    verdict = await holder.verdict(session, hold)
    if verdict is not Verdict.APPLIED:
        return verdict
    await session.tables.update(noted(hold.job_id, hold.attempt, None, now))
    await put_part(session, hold.job_id, hold.attempt, part, jobs)
    commit = Commit(session.tables, "stage", now)
    commit.write(noted(hold.job_id, hold.attempt, part, now), check(Table.JOBS, (hold.job_id,), holder.holds(hold)))
    try:
        await commit.run(Lane.USUAL)
    except Cancelled:
        return await holder.verdict(session, hold)
    return Verdict.APPLIED


async def children(session: Session, job_id: str, after: str | None, limit: int, status: Status | None) -> Page:
    found: list[Item] = []
    async for item in _children(session, job_id, after, limit + 1):
        if status is None or item["status"] == status:
            found.append(item)
            if len(found) > limit:
                break
    shown = await read.full(session, found[:limit])
    return Page(tuple(shown), shown[-1].job_id if len(found) > limit else None)


async def _children(session: Session, job_id: str, after: str | None, page: int) -> AsyncIterator[Item]:
    """Return the children in order of ids, as they are now."""
    ask = Ask(table=Table.RECORDS, hash=schema.kids(job_id), above=after, page=page, consistent=True)
    start = None
    while True:
        rows, start = await session.tables.page(ask, start)
        for item in await session.tables.get(Table.JOBS, [(row["sk"],) for row in rows]):
            if item is not None and dynamodb_transitions.is_there(item):
                yield item
        if start is None:
            return


_NOTHING = Brood()


class Brought(Protocol):
    """Children of a settlement. `brood`: what the commit adds to the parent's counts. `mark`: from which the rest is
    stored."""

    @property
    def brood(self) -> Brood: ...
    @property
    def mark(self) -> Mark | None: ...

    async def commit(self, session: Session, settles: Sequence[Write], now: Instant) -> Commit:
        """Commit the children, or their mark, together with the settlement of their parent."""
        ...


class Together(msgspec.Struct, frozen=True):
    brood: Brood
    decided: Decided
    looked: Looked
    mark: Mark | None = None

    async def commit(self, session: Session, settles: Sequence[Write], now: Instant) -> Commit:
        return await insert.prepare(session, self.decided, self.looked, now, "apply", settles, gated=False)


class Named(msgspec.Struct, frozen=True):
    mark: Mark
    brood: Brood = HELD

    async def commit(self, session: Session, settles: Sequence[Write], now: Instant) -> Commit:
        commit = Commit(session.tables, "apply", now)
        commit.write(*settles, *held(self.mark))
        return commit


async def refuse(session: Session, transitions: Sequence[Transition], now: Instant) -> None:
    """Check all children before the first settlement is applied: if one cannot be stored, nothing of the call is."""
    for t in transitions:
        if not t.children and t.staged is None:
            continue
        found = await insert_decision.get_jobs(session, [t.job_id])
        if isinstance(dynamodb_transitions.applied(found.get(t.job_id), t, now, ""), Moved):
            await prepare(session, t, now)


async def prepare(session: Session, t: Transition, now: Instant) -> Brought:
    if t.staged is not None:
        wanted = {str(part) for part in range(t.staged.parts)}
        if not wanted <= await parts_of(session, t.job_id, t.attempt):
            raise EffectFailed("staged children are gone: the run is repeated", job_id=t.job_id)
        return Named(due(t.job_id, t.attempt, t.staged.parts, now))
    looked = await insert_decision.look(session, t.children)
    decided = decide(t.children, looked, now, items.new_wid())
    if decided.refusal is not None:
        raise EffectFailed(f"a child cannot be stored: {decided.refusal}", job_id=t.job_id) from decided.refusal
    if any(new.linked_later for new in decided.news.values()):
        return await staged(session, t, now)
    touched = decided.touched.get(t.job_id)
    return Together(_NOTHING if touched is None else touched.brood, decided, looked)


async def staged(session: Session, t: Transition, now: Instant) -> Brought:
    """Stage inline children that do not fit into the commit."""
    await session.tables.update(noted(t.job_id, t.attempt, None, now))
    await put_part(session, t.job_id, t.attempt, 0, t.children)
    return Named(due(t.job_id, t.attempt, 1, now))

"""`insert` on DynamoDB: one commit where the jobs fit into one; larger batches go through a journal.

    parts of the journal ──▶ commit point: outbox mark (and the queues' gates) ──▶ slices ──▶ mark and parts are removed

A crash before the commit point leaves parts that mean nothing; after it, `release` of any store stores what is missing.
While slices are written, a reader may see some of the batch; never after the answer, and never for good.

Everything that can fail is read before the commit: after it the jobs are stored, and a caller that got an error would
submit them again. When a condition fails, the insert reads, decides and commits again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence

import msgspec

from backstay import failpoints
from backstay.clock import Instant
from backstay.core.records import Inserted, JobRecord, NewJob, Signal
from backstay.core.states import Counted, Status
from backstay.engines.dynamodb import admission, dependencies, items, outbox, parking, plan, read, schema, transitions
from backstay.engines.dynamodb.commit import ITEMS_MAX, Cancelled, Commit, Rounds
from backstay.engines.dynamodb.expressions import Write, check, equals, put, put_new
from backstay.engines.dynamodb.insert_decision import Decided, Looked, New, decide, guards, look
from backstay.engines.dynamodb.schema import Item, Key, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.transport import Lane
from backstay.errors import BackstayError, StoreError


async def existing(session: Session, decided: Decided) -> dict[str, JobRecord]:
    """Read the existing jobs that are returned instead of new ones."""
    ids = [job_id for job_id in _named(decided) if job_id not in decided.news]
    found: dict[str, JobRecord] = {}
    for job_id, record in zip(ids, await read.get(session, ids) if ids else (), strict=True):
        if record is None:
            raise StoreError(f"job {job_id} was removed while a duplicate was submitted: submit again")
        found[job_id] = record
    return found


def answers(
    decided: Decided, found: Mapping[str, JobRecord], statuses: Mapping[str, Status | None] | None = None
) -> list[Inserted]:
    """Return the answers in order: as decided, unless a newer state of a job is known."""
    given: list[Inserted] = []
    for answer in decided.answers:
        if isinstance(answer, Inserted):
            status = (statuses or {}).get(answer.job_id) or answer.status
            given.append(Inserted(answer.job_id, status, reused_from=answer.reused_from))
        else:
            record = found[answer] if answer in found else items.record(decided.news[answer].item, {})
            given.append(Inserted(answer, record.status, existing=record))
    return given


async def after_commit(session: Session, decided: Decided, found: dict[str, JobRecord]) -> list[Inserted]:
    """Return the answers after the commit; reads jobs again that others of the batch were deduplicated to, and jobs
    that were linked."""
    twins = [job_id for job_id in _named(decided) if job_id in decided.news or job_id in decided.replaced]
    linked = [new.job.job_id for new in decided.news.values() if new.linked_later]
    statuses: dict[str, Status | None] = {}
    with contextlib.suppress(BackstayError):
        if twins:
            stored = zip(twins, await read.get(session, twins), strict=True)
            found = found | {job_id: record for job_id, record in stored if record is not None}
        if linked:
            statuses = dict(zip(linked, await read.statuses(session, linked), strict=True))
    return answers(decided, found, statuses)


def _named(decided: Decided) -> list[str]:
    return list(dict.fromkeys(answer for answer in decided.answers if isinstance(answer, str)))


log = logging.getLogger("backstay.engines.dynamodb")

NEEDS_MAX = 1_000  # ids of dependencies in one item


class Promised(msgspec.Struct, frozen=True):
    """An accepted batch. `again`: some of its jobs may be stored already."""

    wid: str
    again: bool


class TooLarge(Exception):
    """These jobs do not fit into one commit."""


class ElseRefused(Exception):
    """Another write of the commit was refused: no job was stored."""


async def store(
    session: Session,
    jobs: Sequence[NewJob],
    now: Instant,
    *,
    verb: str = "insert",
    also: Sequence[Write] = (),
    promised: Promised | None = None,
) -> list[Inserted]:
    """Store jobs in one commit; `promised` if they are part of a batch in the journal."""
    wid = items.new_wid() if promised is None else promised.wid
    rounds = Rounds(verb)
    while True:
        looked = await look(session, jobs, every_id=promised is not None and (rounds.lost > 0 or promised.again))
        decided = decide(jobs, looked, now, wid, promised=promised is not None)
        await refuse(session, decided, now)
        found = await existing(session, decided)
        marks = [
            outbox.new_mark(outbox.MarkKind.LINK, job_id, now)
            for job_id, new in decided.news.items()
            if new.linked_later
        ]
        commit = await prepare(
            session, decided, looked, now, verb, [*also, *map(outbox.written, marks)], gated=promised is None
        )
        try:
            await commit.run(Lane.USUAL)
        except Cancelled as cancelled:
            _judge(cancelled, decided, also, wid, promised=promised is not None)
            await rounds.again()
            continue
        session.board.committed(commit.signals)
        for mark in marks:
            await _link(session, mark, now)
        return await after_commit(session, decided, found)


async def _link(session: Session, mark: outbox.Mark, now: Instant) -> None:
    """Register the edges. The job is stored already, whatever happens here."""
    try:
        await dependencies.link(session, mark, now)
    except BackstayError as error:
        log.warning(
            "job %s was stored, and maintenance will link it to the rest of its dependencies: %s", mark.name, error
        )


async def refuse(session: Session, decided: Decided, now: Instant) -> None:
    """Raise the reason why these jobs cannot be stored: that of the first one concerned, which may be a full queue."""
    if decided.refusal is not None:
        await admission.queue_room(session, decided.pending, now)
        raise decided.refusal


async def prepare(
    session: Session,
    decided: Decided,
    looked: Looked,
    now: Instant,
    verb: str,
    also: Sequence[Write],
    *,
    gated: bool,
) -> Commit:
    commit = Commit(session.tables, verb, now)
    commit.signals |= decided.signals
    news = list(decided.news.values())
    for new in news:
        for outcome in new.counted:
            commit.count(new.kind, outcome, ran=new.saved_micros if outcome is Counted.REUSED else 0)
    spilled = [items.spill(items.fit(new.item)) for new in news]
    replaced = [(moved, items.spill(items.fit(moved.item))) for moved in decided.replaced.values()]
    writes = [*also, *guards(decided, looked), *(touched.write() for touched in decided.touched.values())]
    writes += [transitions.written(msgspec.structs.replace(moved, item=item)) for moved, (item, _) in replaced]
    for donor in {new.donor for new in news if new.donor is not None}:
        writes.append(check(Table.JOBS, (donor,), equals("status", Status.COMPLETED.value)))
    for new, (item, _) in zip(news, spilled, strict=True):
        writes += [put_new(Table.JOBS, item), *_edges(new), *plan.latest(item)]
    if not commit.takes(*writes):
        raise TooLarge
    pending = [new for new in news if new.status is Status.PENDING]
    if gated and pending:
        writes += await admission.queue_room(session, [new.job for new in pending], now)
        if not commit.takes(*writes):
            raise TooLarge
    if gated and len(pending) < len(news):
        admission.refuse_moved(await session.board.read(fresh=not pending), [new.job for new in news])
    commit.signals |= await _park(session, pending, {item["job_id"]: item for item, _ in spilled}, now)
    texts = [record for _, records in (*spilled, *(each for _, each in replaced)) for record in records]
    await items.put(session.tables, texts)
    await _mark_fair(session, news)
    commit.write(*writes)
    return commit


async def _park(session: Session, pending: list[New], stored: dict[str, Item], now: Instant) -> set[Signal]:
    """Park new jobs whose key or rate has no room, by changing the items in the writes."""
    limited = [stored[new.job.job_id] for new in pending if new.job.concurrency_key is not None or new.job.rate]
    if not limited:
        return set()
    parked = await parking.decide_at_entry(session, limited, now)
    for job_id, by in parked.items():
        if by is not None:
            stored[job_id]["parked"] = by
    return {Signal.DUE} if parking.BY_RATE in parked.values() else set()


async def _mark_fair(session: Session, news: list[New]) -> None:
    """Mark the lanes of jobs with a fairness key before they are stored: claims look for such jobs only in marked
    lanes."""
    for queue, job_type in {(new.job.queue, new.job.job_type) for new in news if new.job.fairness_key is not None}:
        await session.board.mark_fair(queue, job_type)


def _edges(new: New) -> list[Write]:
    job_id = new.job.job_id
    writes: list[Write] = []
    if new.job.parent_job_id is not None:
        pk, sk = schema.kid(new.job.parent_job_id, job_id)
        writes.append(put(Table.RECORDS, {"pk": pk, "sk": sk}))
    if "needs" in new.item:
        parents = [edge.parent for edge in new.edges]
        for number, start in enumerate(range(0, len(parents), NEEDS_MAX)):
            pk, sk = schema.needs(job_id, number)
            writes.append(put(Table.RECORDS, {"pk": pk, "sk": sk, "parents": parents[start : start + NEEDS_MAX]}))
    if new.linked_later:
        return writes
    return writes + [dependencies.edge(edge.parent, job_id, met=edge.met, joined=edge.joined) for edge in new.edges]


def _judge(cancelled: Cancelled, decided: Decided, also: Sequence[Write], wid: str, *, promised: bool) -> None:
    """Raise an error that another try would not resolve."""
    for write in also:
        if (write.table, write.key) in cancelled.failed:
            raise ElseRefused
    for job_id, new in decided.news.items():
        standing = cancelled.failed.get((Table.JOBS, (job_id,)))
        if standing is not None and not new.job.own_id and not promised and standing.get("wid") != wid:
            raise StoreError(f"a job {job_id} already exists: submit with another id; nothing was stored")


PART_BYTES = 300_000  # an item holds 400 KB
PLAIN_SLICE = 90
SPECIAL_SLICE = 30  # each with an edge or a guard, and a child with its record in its parent's list
SLICES_TOGETHER = 4  # slices of plain jobs, which do not depend on one another

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[NewJob])


async def insert_journaled(
    session: Session, jobs: Sequence[NewJob], now: Instant, *, verb: str, also: Sequence[Write]
) -> list[Inserted]:
    wid = items.new_wid()
    whole = _encoder.encode(list(jobs))
    parts = [whole[start : start + PART_BYTES] for start in range(0, len(whole), PART_BYTES)]
    mark = outbox.new_mark(outbox.MarkKind.INSERT, wid, now, parts=len(parts))
    decided = await _decide(session, jobs, now, wid)  # a refused batch need not be written to the journal
    await session.tables.put_many(Table.RECORDS, [_part(wid, n, part) for n, part in enumerate(parts)])
    answers = await _accept(session, jobs, decided, now, verb, mark, also)
    failpoints.hit("journal.between")
    try:
        answers = await _store(session, jobs, now, wid, again=False)
        await _finish(session, mark, len(parts))
    except BackstayError as error:
        log.warning("a batch of %d jobs was accepted, and maintenance will store the rest of it: %s", len(jobs), error)
    return answers


async def _decide(session: Session, jobs: Sequence[NewJob], now: Instant, wid: str) -> Decided:
    decided = decide(jobs, await look(session, jobs), now, wid)
    await refuse(session, decided, now)
    return decided


async def _accept(
    session: Session,
    jobs: Sequence[NewJob],
    decided: Decided,
    now: Instant,
    verb: str,
    mark: outbox.Mark,
    also: Sequence[Write],
) -> list[Inserted]:
    """Write the commit point: from here on the batch is accepted, and any process can store it. Return the decided
    answers."""
    rounds = Rounds(verb)
    while True:
        found = await existing(session, decided)
        commit = Commit(session.tables, verb, now)
        commit.write(outbox.written(mark), *also)
        commit.write(*await admission.queue_room(session, decided.pending, now, journal=mark.name))
        admission.refuse_moved(await session.board.read(fresh=False), jobs)
        try:
            await commit.run(Lane.USUAL)
        except Cancelled as cancelled:
            for write in also:
                if (write.table, write.key) in cancelled.failed:
                    raise ElseRefused from None
            await rounds.again()
            decided = await _decide(session, jobs, now, mark.name)
            continue
        return answers(decided, found)


async def go_on(session: Session, mark: outbox.Mark, now: Instant) -> int:
    """Store what is missing of a batch whose inserter has died or is slow; return how many jobs it has."""
    if not outbox.is_left(mark, now):
        return 0
    places = [schema.journal(mark.name, number) for number in range(mark.item["parts"])]
    found = await session.tables.get(Table.RECORDS, places)
    if any(part is None for part in found):
        return 0  # a process that removed a part had stored all
    jobs = _decoder.decode(b"".join(part["part"] for part in found if part is not None))
    await _store(session, jobs, mark.at, mark.name, again=True)
    await _finish(session, mark, len(places))
    return len(jobs)


def _part(wid: str, number: int, part: bytes) -> dict[str, object]:
    pk, sk = schema.journal(wid, number)
    return {"pk": pk, "sk": sk, "part": part}


async def _store(session: Session, jobs: Sequence[NewJob], now: Instant, wid: str, *, again: bool) -> list[Inserted]:
    if any(job.special for job in jobs):
        return await store_in_order(session, jobs, now, wid, SPECIAL_SLICE, again=again)
    slices = [jobs[start : start + PLAIN_SLICE] for start in range(0, len(jobs), PLAIN_SLICE)]
    answers: list[Inserted] = []
    for start in range(0, len(slices), SLICES_TOGETHER):
        group = slices[start : start + SLICES_TOGETHER]
        for stored in await asyncio.gather(
            *(store_in_order(session, each, now, wid, PLAIN_SLICE, again=again) for each in group)
        ):
            answers += stored
    return answers


async def store_in_order(
    session: Session, jobs: Sequence[NewJob], now: Instant, wid: str, most: int, *, again: bool, verb: str = "insert"
) -> list[Inserted]:
    answers: list[Inserted] = []
    size = most
    while len(answers) < len(jobs):
        start = len(answers)
        try:
            answers += await store(session, jobs[start : start + size], now, verb=verb, promised=Promised(wid, again))
        except TooLarge:
            size = max(1, size // 2)
    return answers


async def _finish(session: Session, mark: outbox.Mark, parts: int) -> None:
    """Remove the mark first: parts without a mark mean nothing, but a mark without parts would."""
    await outbox.finish(session.tables, mark)
    places: list[Key] = [schema.journal(mark.name, number) for number in range(parts)]
    await session.tables.delete_many(Table.RECORDS, places)


TOGETHER_MAX = 90  # plain jobs of several callers in one commit, which leaves room for their counters


async def insert(
    session: Session, jobs: Sequence[NewJob], now: Instant, *, verb: str = "insert", also: Sequence[Write] = ()
) -> list[Inserted]:
    """Store all jobs or none, together with other writes of the commit; through the journal if one commit is too
    small."""
    if len(jobs) <= ITEMS_MAX:
        with contextlib.suppress(TooLarge):
            return await store(session, jobs, now, verb=verb, also=also)
    return await insert_journaled(session, jobs, now, verb=verb, also=also)

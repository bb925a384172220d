"""Storing new jobs in one commit: look, decide, commit; and again from the look when a condition failed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from holdfast.clock import Instant
from holdfast.errors import HoldfastError, StoreError
from holdfast.lifecycle import Counted, Status
from holdfast.store.types import Inserted, NewJob, Signal
from holdfast.stores.dynamodb import answering, bodies, gates, items, keys, linking, outbox, parking, plan
from holdfast.stores.dynamodb.commit import Cancelled, Commit, Write, check, put, put_new
from holdfast.stores.dynamodb.deciding import Decided, New, decide, guards
from holdfast.stores.dynamodb.expressions import equals
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.looking import Looked, look
from holdfast.stores.dynamodb.rounds import Rounds
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

log = logging.getLogger("holdfast.stores.dynamodb")

NEEDS_MAX = 1_000  # ids of dependencies in one item


class Promised(msgspec.Struct, frozen=True):
    """A batch that has been accepted. `again`: some of its jobs may be stored already."""

    wid: str
    again: bool


class TooLarge(Exception):
    """These jobs do not fit into one commit."""


class ElseRefused(Exception):
    """Something else that was to be in the commit was refused: no job was stored."""


async def store(
    ground: Ground,
    jobs: Sequence[NewJob],
    now: Instant,
    *,
    verb: str = "insert",
    also: Sequence[Write] = (),
    promised: Promised | None = None,
) -> list[Inserted]:
    """In one commit; `promised` where these are a part of a batch in the journal."""
    wid = items.new_wid() if promised is None else promised.wid
    rounds = Rounds(verb)
    while True:
        looked = await look(ground, jobs, every_id=promised is not None and (rounds.lost > 0 or promised.again))
        decided = decide(jobs, looked, now, wid, promised=promised is not None)
        await refuse(ground, decided, now)
        found = await answering.existing(ground, decided)
        marks = [
            outbox.new_mark(outbox.MarkKind.LINK, job_id, now)
            for job_id, new in decided.news.items()
            if new.linked_later
        ]
        commit = await prepare(
            ground, decided, looked, now, verb, [*also, *map(outbox.written, marks)], gated=promised is None
        )
        try:
            await commit.run(Lane.USUAL)
        except Cancelled as cancelled:
            _judge(cancelled, decided, also, wid, promised=promised is not None)
            await rounds.again()
            continue
        ground.board.committed(commit.signals)
        for mark in marks:
            await _link(ground, mark, now)
        return await answering.after_commit(ground, decided, found)


async def _link(ground: Ground, mark: outbox.Mark, now: Instant) -> None:
    """The job is in, whatever happens here."""
    try:
        await linking.link(ground, mark, now)
    except HoldfastError as error:
        log.warning("job %s is stored, and upkeep links it to the rest of its dependencies: %s", mark.name, error)


async def refuse(ground: Ground, decided: Decided, now: Instant) -> None:
    """Raise why these cannot be stored. The first of them that cannot be says why: a queue may be full before."""
    if decided.refusal is not None:
        await gates.queue_room(ground, decided.pending, now)
        raise decided.refusal


async def prepare(
    ground: Ground,
    decided: Decided,
    looked: Looked,
    now: Instant,
    verb: str,
    also: Sequence[Write],
    *,
    gated: bool,
) -> Commit:
    commit = Commit(ground.tables, verb, now)
    commit.signals |= decided.signals
    news = list(decided.news.values())
    for new in news:
        for outcome in new.counted:
            commit.count(new.kind, outcome, ran=new.saved_micros if outcome is Counted.REUSED else 0)
    spilled = [bodies.spill(items.fit(new.item)) for new in news]
    writes = [*also, *guards(decided, looked), *(touched.write() for touched in decided.touched.values())]
    for donor in {new.donor for new in news if new.donor is not None}:
        writes.append(check(Table.JOBS, (donor,), equals("status", Status.COMPLETED.value)))
    for new, (item, _) in zip(news, spilled, strict=True):
        writes += [put_new(Table.JOBS, item), *_edges(new), *plan.latest(item)]
    if not commit.takes(*writes):
        raise TooLarge
    pending = [new for new in news if new.status is Status.PENDING]
    if gated and pending:
        writes += await gates.queue_room(ground, [new.job for new in pending], now)
        if not commit.takes(*writes):
            raise TooLarge
    if gated and len(pending) < len(news):
        gates.refuse_moved(await ground.board.read(fresh=not pending), [new.job for new in news])
    commit.signals |= await _park(ground, pending, {item["job_id"]: item for item, _ in spilled}, now)
    await bodies.put(ground.tables, [record for _, records in spilled for record in records])
    await _mark_fair(ground, news)
    commit.write(*writes)
    return commit


async def _park(ground: Ground, pending: list[New], stored: dict[str, Item], now: Instant) -> set[Signal]:
    """Jobs whose key or rate has no room begin out of sight. The items are those that the writes hold."""
    limited = [stored[new.job.job_id] for new in pending if new.job.concurrency_key is not None or new.job.rate]
    if not limited:
        return set()
    parked = await parking.decide_at_entry(ground, limited, now)
    for job_id, by in parked.items():
        if by is not None:
            stored[job_id]["parked"] = by
    return {Signal.DUE} if parking.BY_RATE in parked.values() else set()


async def _mark_fair(ground: Ground, news: list[New]) -> None:
    """Claims look for jobs with a fairness key only where there were some: the mark comes before the first job."""
    for queue, job_type in {(new.job.queue, new.job.job_type) for new in news if new.job.fairness_key is not None}:
        await ground.board.mark_fair(queue, job_type)


def _edges(new: New) -> list[Write]:
    job_id = new.job.job_id
    writes: list[Write] = []
    if new.job.parent_job_id is not None:
        pk, sk = keys.kid(new.job.parent_job_id, job_id)
        writes.append(put(Table.RECORDS, {"pk": pk, "sk": sk}))
    if "needs" in new.item:
        parents = [edge.parent for edge in new.edges]
        for number, start in enumerate(range(0, len(parents), NEEDS_MAX)):
            pk, sk = keys.needs(job_id, number)
            writes.append(put(Table.RECORDS, {"pk": pk, "sk": sk, "parents": parents[start : start + NEEDS_MAX]}))
    if new.linked_later:
        return writes
    return writes + [linking.edge(edge.parent, job_id, met=edge.met, joined=edge.joined) for edge in new.edges]


def _judge(cancelled: Cancelled, decided: Decided, also: Sequence[Write], wid: str, *, promised: bool) -> None:
    """Raise what another look would not mend."""
    for write in also:
        if (write.table, write.key) in cancelled.failed:
            raise ElseRefused
    for job_id, new in decided.news.items():
        standing = cancelled.failed.get((Table.JOBS, (job_id,)))
        if standing is not None and not new.job.own_id and not promised and standing.get("wid") != wid:
            raise StoreError(f"there is a job {job_id} already: submit with an id of its own; nothing was stored")

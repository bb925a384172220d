"""How many jobs wait in a queue that has a limit.

The status index shows them late. So whoever lets jobs in writes their ids down beside the queue's gate: of those that
were let in a moment ago and are not shown, the table tells whether they wait. A batch in the journal counts as a whole
from its acceptance on, though its jobs are stored little by little.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clock import MICROS, Instant
from holdfast.lifecycle import Status
from holdfast.stores.dynamodb import keys, outbox
from holdfast.stores.dynamodb.asking import Ask
from holdfast.stores.dynamodb.expressions import equals
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import STATUS, Table
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane

LATE_MICROS = 10 * MICROS  # an index is hardly ever so late, nor are two clocks so far apart
_IDS_MAX = 5_000  # in one record, which ends at 400 KB

_Recent = dict[str, str | None]  # who was let in a moment ago, each with the journal it may still lie in


def given(queue: str, job_ids: Sequence[str], name: str, now: Instant, *, journal: bool = False) -> list[Item]:
    """The records of those that are let in; `name` is the journal's, where they are a batch in it."""
    records: list[Item] = []
    for number, start in enumerate(range(0, len(job_ids), _IDS_MAX)):
        pk, sk = keys.given(queue, now, name, number)
        record: Item = {"pk": pk, "sk": sk, "at": now, "ids": list(job_ids[start : start + _IDS_MAX])}
        records.append({**record, "journal": name} if journal else record)
    return records


async def room(ground: Ground, queue: str, count: int, limit: int, now: Instant) -> int:
    """How many more the queue takes. Less than there is, where that is enough for `count`: to be exact costs reads."""
    recent = await _recent(ground, queue, now)
    shown, unseen = await _shown(ground, queue, limit, recent)
    sure = limit - shown - len(unseen)
    if count <= sure or count > limit - shown:
        return sure if count <= sure else limit - shown
    return limit - shown - await _still_waiting(ground, queue, unseen, recent)


async def _recent(ground: Ground, queue: str, now: Instant) -> _Recent:
    """What is old is in the index, and its record goes; unless its journal is not all stored."""
    ask = Ask(table=Table.RECORDS, hash=keys.queue_gate(queue)[0], begins="given|", consistent=True)
    records = [record async for record in ground.tables.ask(ask)]
    names = sorted({record["journal"] for record in records if "journal" in record})
    marks = await ground.tables.get(Table.RECORDS, [outbox.place(outbox.MarkKind.INSERT, name) for name in names])
    unfinished = {name for name, mark in zip(names, marks, strict=True) if mark is not None}
    recent: _Recent = {}
    over = []
    for record in records:
        journal = record.get("journal")
        journal = journal if journal in unfinished else None
        if journal is None and abs(now - record["at"]) > LATE_MICROS:
            over.append((record["pk"], record["sk"]))
        else:
            recent.update(dict.fromkeys(record["ids"], journal))
    await ground.tables.delete_many(Table.RECORDS, over, lane=Lane.IDLE)
    return recent


async def _shown(ground: Ground, queue: str, limit: int, recent: _Recent) -> tuple[int, set[str]]:
    """How many the index shows, up to the limit, and who of the recent ones is not among them."""
    count, unseen = 0, set(recent)
    for hash_value in keys.all_shards(Status.PENDING.value, ground.shards):
        ask = Ask(
            table=Table.JOBS,
            index=STATUS.name,
            hash=hash_value,
            only=("job_id", STATUS.range),
            where=equals("queue", queue),
        )
        async for row in ground.tables.ask(ask):
            count += 1
            unseen.discard(row["job_id"])
            if count >= limit:
                return count, unseen
    return count, unseen


async def _still_waiting(ground: Ground, queue: str, unseen: set[str], recent: _Recent) -> int:
    ids = sorted(unseen)
    found = await ground.tables.get(Table.JOBS, [(job_id,) for job_id in ids], only=("status", "queue"))
    return sum(
        recent[job_id] is not None
        if item is None
        else item.get("status") == Status.PENDING and item.get("queue") == queue
        for job_id, item in zip(ids, found, strict=True)
    )

"""What a claim's holder may do while it holds: extend its lease, keep notes, record the answers of steps.

Each is one write that compares status, attempt and token. None has a version, and each may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from holdfast.clock import Instant
from holdfast.errors import StoreError
from holdfast.lifecycle import Status
from holdfast.store.types import Hold, Note, Verdict
from holdfast.stores.dynamodb import bodies, items, keys, moving
from holdfast.stores.dynamodb.commit import Cancelled, Commit, check, put_new, update
from holdfast.stores.dynamodb.expressions import Condition, equals
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.layout import Table
from holdfast.stores.dynamodb.table import Failed
from holdfast.stores.dynamodb.values import Item
from holdfast.stores.dynamodb.wire import Lane
from holdfast.stores.transitions import held

TOGETHER = 16  # writes under way at once
ANSWER_BYTES_MAX = 300_000  # of a step; an item ends at 400 KB
_NOTED = ("progress", "stage", "logs", "log_location", "metrics", "artifacts")


async def extend(ground: Ground, holds: Sequence[Hold], lease_expires_at: Instant, now: Instant) -> list[Verdict]:
    turn = asyncio.Semaphore(TOGETHER)

    async def one(hold: Hold) -> Verdict:
        sets = {"lease_expires_at": lease_expires_at, "ge": keys.lease_place(lease_expires_at, hold.job_id)}
        async with turn:
            return await _write(ground, hold, sets, "extend")

    return list(await asyncio.gather(*map(one, holds)))


async def note(ground: Ground, notes: Sequence[Note], now: Instant) -> list[Verdict]:
    turn = asyncio.Semaphore(TOGETHER)
    by_job: dict[str, list[int]] = {}
    for position, each in enumerate(notes):
        by_job.setdefault(each.hold.job_id, []).append(position)
    verdicts = [Verdict.STALE] * len(notes)

    async def of_one_job(positions: list[int]) -> None:
        for position in positions:  # in order: the last note stays
            async with turn:
                verdicts[position] = await _note(ground, notes[position], now)

    await asyncio.gather(*map(of_one_job, by_job.values()))
    return verdicts


async def _note(ground: Ground, note: Note, now: Instant) -> Verdict:
    said = {name: value for name in _NOTED if (value := getattr(note, name)) is not None}
    noted = {**said, "job_id": note.hold.job_id, "wid": items.new_wid(), "updated_at": now}
    spilled, texts = bodies.spill(items.fit(noted))
    await bodies.put(ground.tables, texts)
    sets = {name: value for name, value in spilled.items() if name not in ("job_id", "wid")}
    replaced = [("artifacts", "artifacts_body")] if "artifacts" in said else []
    removes = tuple(name for pair in replaced for name in pair if name not in sets)
    return await _write(ground, note.hold, sets, "note", removes)


async def _write(ground: Ground, hold: Hold, sets: Item, verb: str, removes: tuple[str, ...] = ()) -> Verdict:
    write = update(Table.JOBS, (hold.job_id,), sets=sets, removes=removes, condition=holds(hold))
    try:
        await ground.tables.update(write, lane=Lane.URGENT, verb=verb)
    except Failed as failed:
        return judge(hold, failed.item)
    return Verdict.APPLIED


def holds(hold: Hold) -> Condition:
    return (
        equals("status", Status.PROCESSING.value) & equals("attempt", hold.attempt) & equals("claim_token", hold.token)
    )


def judge(hold: Hold, item: Item | None) -> Verdict:
    """Whether a claim holds, by how its job stands."""
    if item is None or not moving.is_there(item):
        return Verdict.GONE
    return held(hold, (item["status"], item.get("attempt", 0), item.get("claim_token")))


async def verdict(ground: Ground, hold: Hold) -> Verdict:
    """Whether a claim holds, as it stands."""
    [job] = await ground.tables.get(Table.JOBS, [(hold.job_id,)], lane=Lane.URGENT)
    return judge(hold, job)


# Steps


async def step(ground: Ground, job_id: str, name: str) -> str | None:
    [found] = await ground.tables.get(Table.RECORDS, [keys.step(job_id, name)])
    if found is None:
        return None
    answer: str = found["answer"]
    return answer


async def record_step(ground: Ground, hold: Hold, name: str, answer: str, now: Instant) -> Verdict:
    """The answer and the look at the claim are one commit; the first answer stays."""
    size = len(answer.encode())
    if size > ANSWER_BYTES_MAX:
        raise StoreError(
            f"the answer of step {name!r} has {size:,} bytes, and DynamoDB keeps {ANSWER_BYTES_MAX:,}:"
            " store it as an artifact and answer with its name"
        )
    pk, sk = keys.step(hold.job_id, name)
    item = {"pk": pk, "sk": sk, "name": name, "answer": answer, "attempt": hold.attempt, "recorded_at": now}
    commit = Commit(ground.tables, "record_step", now)
    commit.write(put_new(Table.RECORDS, item), check(Table.JOBS, (hold.job_id,), holds(hold)))
    try:
        await commit.run(Lane.URGENT)
    except Cancelled:
        return await verdict(ground, hold)
    return Verdict.APPLIED

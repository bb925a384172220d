"""Writes of a claim's holder on DynamoDB: extend its lease, store notes, record the answers of steps.

Each is one write that compares status, attempt and token. None has a version, and each may be repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from backstay.clock import Instant
from backstay.core.records import Hold, Note, Transition, Verdict
from backstay.core.states import Status
from backstay.core.waits import StepKind
from backstay.engines.dynamodb import items, schema, transitions
from backstay.engines.dynamodb.commit import Cancelled, Commit
from backstay.engines.dynamodb.expressions import Condition, Write, at_most, check, equals, put, put_new, update
from backstay.engines.dynamodb.schema import Item, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.table import Failed
from backstay.engines.dynamodb.transport import Lane
from backstay.engines.sql_rows import held
from backstay.errors import StoreError

TOGETHER = 16  # writes under way at once
ANSWER_BYTES_MAX = 300_000  # of a step's answer; an item holds 400 KB
_NOTED = ("progress", "stage", "logs", "log_location", "metrics", "artifacts")


async def extend(session: Session, holds: Sequence[Hold], lease_expires_at: Instant, now: Instant) -> list[Verdict]:
    turn = asyncio.Semaphore(TOGETHER)

    async def one(hold: Hold) -> Verdict:
        sets = {"lease_expires_at": lease_expires_at, "ge": schema.lease_place(lease_expires_at, hold.job_id)}
        async with turn:
            return await _write(session, hold, sets, "extend")

    return list(await asyncio.gather(*map(one, holds)))


async def note(session: Session, notes: Sequence[Note], now: Instant) -> list[Verdict]:
    turn = asyncio.Semaphore(TOGETHER)
    by_job: dict[str, list[int]] = {}
    for position, each in enumerate(notes):
        by_job.setdefault(each.hold.job_id, []).append(position)
    verdicts = [Verdict.STALE] * len(notes)

    async def of_one_job(positions: list[int]) -> None:
        for position in positions:  # in order: the last note counts
            async with turn:
                verdicts[position] = await _note(session, notes[position], now)

    await asyncio.gather(*map(of_one_job, by_job.values()))
    return verdicts


async def _note(session: Session, note: Note, now: Instant) -> Verdict:
    said = {name: value for name in _NOTED if (value := getattr(note, name)) is not None}
    noted = {**said, "job_id": note.hold.job_id, "wid": items.new_wid(), "updated_at": now}
    spilled, texts = items.spill(items.fit(noted))
    await items.put(session.tables, texts)
    sets = {name: value for name, value in spilled.items() if name not in ("job_id", "wid")}
    replaced = [("artifacts", "artifacts_body")] if "artifacts" in said else []
    removes = tuple(name for pair in replaced for name in pair if name not in sets)
    return await _write(session, note.hold, sets, "note", removes)


async def _write(session: Session, hold: Hold, sets: Item, verb: str, removes: tuple[str, ...] = ()) -> Verdict:
    write = update(Table.JOBS, (hold.job_id,), sets=sets, removes=removes, condition=holds(hold))
    try:
        await session.tables.update(write, lane=Lane.URGENT, verb=verb)
    except Failed as failed:
        return judge(hold, failed.item)
    return Verdict.APPLIED


def holds(hold: Hold) -> Condition:
    return (
        equals("status", Status.PROCESSING.value) & equals("attempt", hold.attempt) & equals("claim_token", hold.token)
    )


def judge(hold: Hold, item: Item | None) -> Verdict:
    """Return whether a claim holds, given its job's item."""
    if item is None or not transitions.is_there(item):
        return Verdict.GONE
    return held(hold, (item["status"], item.get("attempt", 0), item.get("claim_token")))


async def verdict(session: Session, hold: Hold) -> Verdict:
    """Read the job, and return whether a claim on it holds."""
    [job] = await session.tables.get(Table.JOBS, [(hold.job_id,)], lane=Lane.URGENT)
    return judge(hold, job)


# Steps


async def step(session: Session, job_id: str, name: str, kind: StepKind) -> str | None:
    [found] = await session.tables.get(Table.RECORDS, [schema.step(job_id, kind.value, name)])
    if found is None or is_forgotten(found, await forgotten(session, job_id)):
        return None
    answer: str = found["answer"]
    return answer


async def forgotten(session: Session, job_id: str) -> Item | None:
    """Return the mark up to which the steps of a job are forgotten."""
    [mark] = await session.tables.get(Table.RECORDS, [schema.forgotten_steps(job_id)])
    return mark


def is_forgotten(step: Item, mark: Item | None) -> bool:
    """Return whether a step was recorded, or an event sent, before a manual retry that forgot it."""
    if mark is None or step["kind"] == StepKind.OWN:
        return False
    if step["kind"] == StepKind.SENT:
        return bool(step.get("at", 0) <= mark["version"])
    return bool(step["attempt"] <= mark["attempt"])


def forget_steps(t: Transition) -> Write:
    """Return the write that forgets all answers of a job so far. It is one, however many answers there are: a commit
    could not delete more than a hundred. They go with the job, or are replaced."""
    pk, sk = schema.forgotten_steps(t.job_id)
    return put(Table.RECORDS, {"pk": pk, "sk": sk, "attempt": t.attempt, "version": t.version or 0})


async def record_step(session: Session, hold: Hold, name: str, answer: str, now: Instant, kind: StepKind) -> Verdict:
    """Store an answer and check the claim in one commit; the first answer that is not forgotten is kept."""
    size = len(answer.encode())
    if size > ANSWER_BYTES_MAX:
        raise StoreError(
            f"the answer of step {name!r} has {size:,} bytes, and DynamoDB keeps {ANSWER_BYTES_MAX:,}:"
            " store it as an artifact and answer with its name"
        )
    pk, sk = schema.step(hold.job_id, kind.value, name)
    what = {"kind": kind.value, "name": name, "answer": answer, "attempt": hold.attempt, "recorded_at": now}
    item = {"pk": pk, "sk": sk, **what}
    if await _record(session, hold, put_new(Table.RECORDS, item), now):
        return Verdict.APPLIED
    mark = None if kind is StepKind.OWN else await forgotten(session, hold.job_id)
    if mark and await _record(session, hold, put(Table.RECORDS, item, at_most("attempt", mark["attempt"])), now):
        return Verdict.APPLIED
    return await verdict(session, hold)


async def _record(session: Session, hold: Hold, write: Write, now: Instant) -> bool:
    commit = Commit(session.tables, "record_step", now)
    commit.write(write, check(Table.JOBS, (hold.job_id,), holds(hold)))
    try:
        await commit.run(Lane.URGENT)
    except Cancelled:
        return False
    return True

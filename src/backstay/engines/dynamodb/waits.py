"""Durable waits on DynamoDB: recorded steps, events that are sent to jobs or keys, and waits that time out.

    an event for a job ──▶ one commit: the event, one more on the job, which is pending if it waits for it
    a wait begins      ──▶ only while the job has as many events as its attempt has seen

The number of events of a job (`mail`) changes without a version, like the counts of a parent. What is kept of a
correlation key is one item, compared by its nonce.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence

from backstay.clock import Instant
from backstay.core import waits
from backstay.core.records import Hold, Verdict
from backstay.core.states import TERMINAL
from backstay.core.waits import Delivery, EventWait, Inbox, Kept, Listener, Mailbox, NewEvent, Sent, Step, StepKind
from backstay.engines.dynamodb import holder, items, schema, transitions
from backstay.engines.dynamodb import plan as dynamodb_plan
from backstay.engines.dynamodb.commit import Cancelled, Commit, Rounds
from backstay.engines.dynamodb.expressions import Ask, Condition, Write, absent, add, check, delete, equals, put
from backstay.engines.dynamodb.plan import Plan
from backstay.engines.dynamodb.schema import Item, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.table import Failed
from backstay.engines.dynamodb.transport import Lane
from backstay.limits import JOB_EVENTS_MAX


async def steps(session: Session, job_id: str, limit: int) -> list[Step]:
    return await _steps(session, job_id, "", limit)


async def inbox(session: Session, job_id: str) -> Inbox:
    [job] = await session.tables.get(Table.JOBS, [(job_id,)])  # before the events: one that comes later is not seen
    seen = 0 if job is None else job.get("mail", 0)
    found = [
        step
        for kind in (StepKind.SENT, StepKind.EVENT)
        for step in await _steps(session, job_id, schema.steps_of(kind.value))
    ]
    return waits.inbox(found, seen)


async def _steps(session: Session, job_id: str, begins: str, limit: int | None = None) -> list[Step]:
    mark = await holder.forgotten(session, job_id)
    ask = Ask(table=Table.RECORDS, hash=schema.steps(job_id), begins=begins or None, consistent=True)
    found: list[Step] = []
    async for row in session.tables.ask(ask):
        if "name" not in row or holder.is_forgotten(row, mark):
            continue
        found.append(Step(StepKind(row["kind"]), row["name"], row["answer"], row["attempt"], row["recorded_at"]))
        if len(found) == limit:
            break
    return found


# Sending


async def send(session: Session, events: Sequence[NewEvent], now: Instant) -> list[Delivery]:
    return [
        await (_send_to_job(session, each, now) if each.job_id is not None else _send_to_key(session, each, now))
        for each in events
    ]


async def _send_to_job(session: Session, event: NewEvent, now: Instant) -> Delivery:
    job_id = event.job_id or ""
    sent = Sent(event.name, event.payload, now, None, event.by)
    rounds = Rounds("send")
    while True:
        [item] = await session.tables.get(Table.JOBS, [(job_id,)], lane=Lane.URGENT)
        if item is None:
            return Delivery.GONE
        row = await _row(session, item, event.event_id, sent, now)
        if isinstance(row, Delivery):
            return row
        if await _commit(session, _recorded(item, row, event.event_id, sent, now), [], now):
            return Delivery.RECORDED
        await rounds.again()


async def _row(session: Session, item: Item, event_id: str, sent: Sent, now: Instant) -> Write | Delivery:
    """Return the write that records an event with a job, or why it cannot be."""
    job_id = item["job_id"]
    pk, sk = schema.step(job_id, StepKind.SENT.value, event_id)
    [known] = await session.tables.get(Table.RECORDS, [(pk, sk)])
    if known is not None and not holder.is_forgotten(known, await holder.forgotten(session, job_id)):
        return Delivery.REPEATED
    if transitions.status_of(item) in TERMINAL:
        return Delivery.ENDED
    if item.get("mail", 0) >= JOB_EVENTS_MAX:
        return Delivery.FULL
    what = {"kind": StepKind.SENT.value, "name": event_id, "answer": waits.encoded(sent), "recorded_at": now}
    row = {"pk": pk, "sk": sk, **what, "attempt": item.get("attempt", 0), "at": item["version"]}
    return put(Table.RECORDS, row, absent("pk") if known is None else equals("at", known.get("at")))


def _recorded(item: Item, row: Write, event_id: str, sent: Sent, now: Instant) -> Plan:
    """Return the writes that record an event with a job, and resume the job if it waits for it."""
    made = Plan()
    made.writes.append(row)
    moved = transitions.sent(item, event_id, sent, now, items.new_wid())
    if moved is not None:
        made.move(moved, now)
    else:
        made.writes.append(add(Table.JOBS, (item["job_id"],), {"mail": 1}, equals("version", item["version"])))
    return made


async def _commit(session: Session, made: Plan, others: Sequence[Write], now: Instant) -> bool:
    await dynamodb_plan.settle(session, made, now)
    commit = Commit(session.tables, "send", now)
    made.into(commit)
    commit.write(*others)
    await items.put(session.tables, made.texts)
    try:
        await commit.run(Lane.URGENT)
    except Cancelled:
        return False
    session.board.committed(commit.signals)
    return True


# Correlation keys


async def _read(session: Session, key: str) -> Item | None:
    [found] = await session.tables.get(Table.RECORDS, [schema.mailbox(key)])
    return found


def _box(stored: Item | None) -> Mailbox:
    return Mailbox.of(None if stored is None else stored["content"])


def _saved(key: str, stored: Item | None, box: Mailbox, now: Instant) -> Write:
    """Return the write of a mailbox, if it is still as it was read."""
    pk, sk = schema.mailbox(key)
    fields = {"key": key, "content": box.stored, "expires_at": now + waits.KEPT_MICROS}
    item = {"pk": pk, "sk": sk, **fields, "nonce": secrets.token_hex(8)}
    return put(Table.RECORDS, item, _unchanged(stored))


def _unchanged(stored: Item | None) -> Condition:
    return absent("pk") if stored is None else equals("nonce", stored["nonce"])


async def _send_to_key(session: Session, event: NewEvent, now: Instant) -> Delivery:
    key = event.key or ""
    sent = Sent(event.name, event.payload, now, key, event.by)
    rounds = Rounds("send")
    while True:
        stored = await _read(session, key)
        box = _box(stored)
        if box.knows(event.event_id):
            return Delivery.REPEATED
        gone: list[Listener] = []
        for listener in box.listeners_of(event.name):
            [item] = await session.tables.get(Table.JOBS, [(listener.job_id,)], lane=Lane.URGENT)
            row = None if item is None else await _row(session, item, event.event_id, sent, now)
            if item is None or row is None or isinstance(row, Delivery):
                gone.append(listener)
                continue
            left = _saved(key, stored, box.delivered(event.event_id, listener, gone), now)
            if await _commit(session, _recorded(item, row, event.event_id, sent, now), [left], now):
                return Delivery.RECORDED
            break
        else:
            kept = box.keeping(event, now, gone)
            if kept is None:
                return Delivery.FULL
            if await _commit(session, Plan(), [_saved(key, stored, kept, now)], now):
                return Delivery.KEPT
        await rounds.again()


async def listen_for(session: Session, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
    key = wait.key or ""
    rounds = Rounds("listen_for")
    while True:
        stored = await _read(session, key)
        before = _box(stored)
        # After the mailbox, which changes with each event that a job gets from it.
        if waits.next_event(await inbox(session, hold.job_id), wait) is not None:
            return await holder.verdict(session, hold)  # it has one already: the next is for others
        box, kept = before.listening(Listener(wait.name, hold.job_id, wait.wait), now)
        if box.is_crowded:
            return Verdict.BLOCKED
        if box == before:
            return await holder.verdict(session, hold)
        if await _held_commit(session, hold, [_saved(key, stored, box, now)], key, kept, now):
            return Verdict.APPLIED
        if (verdict := await holder.verdict(session, hold)) is not Verdict.APPLIED:
            return verdict
        await rounds.again()


async def _held_commit(
    session: Session, hold: Hold, writes: Sequence[Write], key: str, kept: Kept | None, now: Instant
) -> bool:
    """Commit writes of a claim's holder, with the event that it gets at once, if any."""
    made = Plan()
    made.writes += writes
    [item] = await session.tables.get(Table.JOBS, [(hold.job_id,)], lane=Lane.URGENT)
    row = None if kept is None or item is None else await _row(session, item, kept.event_id, kept.sent(key), now)
    if row is None or isinstance(row, Delivery):
        made.writes.append(check(Table.JOBS, (hold.job_id,), holder.holds(hold)))
    else:
        made.writes += [row, add(Table.JOBS, (hold.job_id,), {"mail": 1}, holder.holds(hold))]
    return await _commit(session, made, [], now)


async def stop_listening(session: Session, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
    key = wait.key or ""
    rounds = Rounds("stop_listening")
    while True:
        stored = await _read(session, key)
        before = _box(stored)
        box = before.without(Listener(wait.name, hold.job_id, wait.wait))
        if box == before:
            return await holder.verdict(session, hold)
        if await _held_commit(session, hold, [_saved(key, stored, box, now)], key, None, now):
            return Verdict.APPLIED
        if (verdict := await holder.verdict(session, hold)) is not Verdict.APPLIED:
            return verdict
        await rounds.again()


async def prune(session: Session, rows: Sequence[Item], now: Instant) -> None:
    """Delete events that no wait has listened for in time, and waits of jobs that have ended, from mailboxes."""
    for row in rows:
        box = _box(row)
        ids = sorted({each.job_id for each in box.listeners})
        found = await session.tables.get(Table.JOBS, [(job_id,) for job_id in ids], lane=Lane.IDLE)
        standing = zip(ids, found, strict=True)
        active = {job_id for job_id, item in standing if item and transitions.status_of(item) not in TERMINAL}
        left = box.pruned(active, now)
        place = schema.mailbox(row["key"])
        write = delete(Table.RECORDS, place, _unchanged(row)) if left.is_empty else _saved(row["key"], row, left, now)
        with contextlib.suppress(Failed):  # it has changed since
            await session.tables.update(write, lane=Lane.IDLE)

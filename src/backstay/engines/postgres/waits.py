"""Durable waits on PostgreSQL: recorded steps, events that are sent to jobs or keys, and waits that time out.

An event is recorded while the row of its job is locked, and a wait begins under the same lock: one sees the other. What
is kept of a correlation key is read and written while the name of the key is locked, before any job is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backstay.clock import Instant
from backstay.core import waits
from backstay.core.records import Hold, Verdict
from backstay.core.states import TERMINAL, Status
from backstay.core.waits import Delivery, EventWait, Inbox, Listener, Mailbox, NewEvent, Sent, Step, StepKind
from backstay.engines.places import Move, Standing
from backstay.engines.postgres import places as postgres_places
from backstay.engines.postgres.connection import Tx
from backstay.engines.release import note
from backstay.engines.waits import after_event, after_missed_event, after_timeout
from backstay.limits import JOB_EVENTS_MAX


def name_of(key: str) -> str:
    return f"backstay event {key}"


async def steps(tx: Tx, job_id: str, limit: int) -> list[Step]:
    return [_step(row) for row in await tx.rows("steps", job_id, limit)]


async def inbox(tx: Tx, job_id: str) -> Inbox:
    found = [_step(row) for row in await tx.rows("event_steps", job_id)]
    return waits.inbox(found, sum(each.kind is StepKind.SENT for each in found))


def _step(row: Sequence[Any]) -> Step:
    kind, *rest = row
    return Step(StepKind(kind), *rest)


# Sending


async def send(tx: Tx, events: Sequence[NewEvent], now: Instant) -> list[Delivery]:
    keys = sorted({each.key for each in events if each.key is not None and each.job_id is None})
    if keys:
        await tx.rows("lock_names", [name_of(key) for key in keys])
    boxes = {key: Mailbox.of(await tx.value("mailbox", key)) for key in keys}
    listening = [
        listener.job_id
        for each in events
        if each.job_id is None and each.key is not None
        for listener in boxes[each.key].listeners_of(each.name)
    ]
    ids = sorted({*listening, *(each.job_id for each in events if each.job_id is not None)})
    jobs: dict[str, Standing] = {}
    if ids:
        await tx.rows("lock_jobs", ids, [])
        jobs = await postgres_places.locked(tx, ids)
    return [
        await _send_to_job(tx, jobs, each.job_id, each, now)
        if each.job_id is not None
        else await _send_to_key(tx, jobs, boxes, each, now)
        for each in events
    ]


async def send_due(tx: Tx, now: Instant, limit: int) -> int:
    """Hand over events that were sent by SQL; return how many there were."""
    found = sorted(tuple(row) for row in await tx.rows("take_event_due", limit))
    if found:
        await send(tx, [NewEvent(*each) for _, *each in found], now)
    return len(found)


async def _send_to_job(tx: Tx, jobs: dict[str, Standing], job_id: str, event: NewEvent, now: Instant) -> Delivery:
    if job_id not in jobs:
        return Delivery.GONE if await tx.value("status", job_id) is None else Delivery.ENDED
    return await _record(tx, jobs, job_id, event.event_id, Sent(event.name, event.payload, now, None, event.by), now)


async def _send_to_key(
    tx: Tx, jobs: dict[str, Standing], boxes: dict[str, Mailbox], event: NewEvent, now: Instant
) -> Delivery:
    key = event.key or ""
    box = boxes[key]
    if box.knows(event.event_id):
        return Delivery.REPEATED
    sent = Sent(event.name, event.payload, now, key, event.by)
    gone: list[Listener] = []
    for listener in box.listeners_of(event.name):
        done = listener.job_id in jobs and await _record(tx, jobs, listener.job_id, event.event_id, sent, now)
        if done is Delivery.RECORDED:
            boxes[key] = box.delivered(event.event_id, listener, gone)
            await _save(tx, key, boxes[key], now)
            return Delivery.RECORDED
        gone.append(listener)
    kept = box.keeping(event, now, gone)
    if kept is None:
        return Delivery.FULL
    boxes[key] = kept
    await _save(tx, key, kept, now)
    return Delivery.KEPT


async def _save(tx: Tx, key: str, box: Mailbox, now: Instant) -> None:
    await tx.execute("save_mailbox", key, box.stored, now + waits.KEPT_MICROS)


async def _record(tx: Tx, jobs: dict[str, Standing], job_id: str, event_id: str, sent: Sent, now: Instant) -> Delivery:
    job = jobs[job_id]
    if await tx.value("knows_sent", job_id, event_id):
        return Delivery.REPEATED
    if job.status in TERMINAL:
        return Delivery.ENDED
    if await tx.value("count_sent", job_id) >= JOB_EVENTS_MAX:
        return Delivery.FULL
    await tx.execute("save_sent", job_id, event_id, waits.encoded(sent), job.attempt, now)
    if job.status is Status.WAITING and (found := after_event(job, event_id, sent, now)) is not None:
        await _write(tx, [found], now)
        jobs[job_id] = found.after
    return Delivery.RECORDED


async def _write(tx: Tx, moves: Sequence[Move], now: Instant) -> None:
    await postgres_places.write(tx, moves)
    for found in moves:
        note(tx, found, now)


# Waiting


async def resume_if_sent(tx: Tx, job: Standing, seen: int | None, now: Instant) -> None:
    """Resume a job that has just begun to wait, if more events were sent to it than its last attempt has seen."""
    if seen is not None and await tx.value("count_sent", job.job_id) != seen:
        await _write(tx, [after_missed_event(job, now)], now)


async def listen_for(tx: Tx, hold: Hold, wait: EventWait, now: Instant, verdict: Verdict) -> Verdict:
    """Let a wait listen, given whether its claim holds; the name of its key is locked."""
    if verdict is not Verdict.APPLIED:
        return verdict
    if waits.next_event(await inbox(tx, hold.job_id), wait) is not None:
        return Verdict.APPLIED  # it has one already, since an earlier attempt: the next is for others
    key = wait.key or ""
    stored = Mailbox.of(await tx.value("mailbox", key))
    box, kept = stored.listening(Listener(wait.name, hold.job_id, wait.wait), now)
    if box.is_crowded:
        return Verdict.BLOCKED
    await _save(tx, key, box, now)
    if kept is not None and not await tx.value("knows_sent", hold.job_id, kept.event_id):
        sent = waits.encoded(kept.sent(key))
        await tx.execute("save_sent", hold.job_id, kept.event_id, sent, hold.attempt, now)
    return Verdict.APPLIED


async def stop_listening(tx: Tx, hold: Hold, wait: EventWait, now: Instant, verdict: Verdict) -> Verdict:
    key = wait.key or ""
    if verdict is Verdict.APPLIED and (stored := await tx.value("mailbox", key)) is not None:
        await _save(tx, key, Mailbox.of(stored).without(Listener(wait.name, hold.job_id, wait.wait)), now)
    return verdict


# Time


async def time_out(tx: Tx, now: Instant, limit: int) -> int:
    """Resume jobs whose wait has timed out; return how many."""
    ids = sorted(await tx.column("timed_out", now, limit))
    if not ids:
        return 0
    await tx.rows("lock_jobs", ids, [])
    jobs = await postgres_places.locked(tx, ids)
    waiting = (jobs[job_id] for job_id in ids if job_id in jobs and jobs[job_id].status is Status.WAITING)
    moves = [found for job in waiting if (found := after_timeout(job, now)) is not None]
    await _write(tx, moves, now)
    return len(moves)


async def drop_old_mailboxes(tx: Tx, now: Instant, limit: int) -> None:
    """Delete events that no wait has listened for in time, and waits of jobs that have ended."""
    keys = sorted(await tx.column("old_mailboxes", now, limit))
    if keys:
        await tx.rows("lock_names", [name_of(key) for key in keys])
    for key in keys:
        box = Mailbox.of(await tx.value("mailbox", key))
        found = await tx.rows("statuses_of", list({each.job_id for each in box.listeners}))
        active = {job_id for job_id, status in found if status is not None and Status(status) not in TERMINAL}
        left = box.pruned(active, now)
        if left.is_empty:
            await tx.execute("drop_mailbox", key)
        else:
            await _save(tx, key, left, now)

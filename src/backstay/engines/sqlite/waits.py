"""Durable waits on SQLite: recorded steps, events that are sent to jobs or keys, and waits that time out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import apsw

from backstay.clock import Instant
from backstay.core import waits
from backstay.core.records import Hold, Verdict
from backstay.core.states import TERMINAL, Status
from backstay.core.waits import Delivery, EventWait, Inbox, Listener, Mailbox, NewEvent, Sent, Step, StepKind
from backstay.engines.places import Move, Standing
from backstay.engines.release import note
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite import places as sqlite_places
from backstay.engines.sqlite.connection import load
from backstay.engines.sqlite.writer import Tx
from backstay.engines.waits import after_event, after_missed_event, after_timeout
from backstay.limits import JOB_EVENTS_MAX

STEPS = load("steps")
EVENT_STEPS = load("event_steps")
COUNT_SENT = load("count_sent")
KNOWS_SENT = load("knows_sent")
SAVE_SENT = load("save_sent")
MAILBOX = load("mailbox")
SAVE_MAILBOX = load("save_mailbox")
DROP_MAILBOX = load("drop_mailbox")
OLD_MAILBOXES = load("old_mailboxes")
TIMED_OUT = load("timed_out")
NEXT_TIMEOUT = load("next_timeout")
STATUS = load("status")


def steps(connection: apsw.Connection, job_id: str, limit: int) -> list[Step]:
    return list(map(_step, sqlite_connection.rows(connection, STEPS, (job_id, limit))))


def inbox(connection: apsw.Connection, job_id: str) -> Inbox:
    found = list(map(_step, sqlite_connection.rows(connection, EVENT_STEPS, (job_id,))))
    return waits.inbox(found, sum(each.kind is StepKind.SENT for each in found))


def _step(row: Sequence[Any]) -> Step:
    kind, *rest = row
    return Step(StepKind(kind), *rest)


# Sending


def send(tx: Tx, events: Sequence[NewEvent], now: Instant) -> list[Delivery]:
    return [
        _send_to_job(tx, each.job_id, each, now) if each.job_id is not None else _send_to_key(tx, each, now)
        for each in events
    ]


def _send_to_job(tx: Tx, job_id: str, event: NewEvent, now: Instant) -> Delivery:
    job = sqlite_places.standing(tx, job_id)
    if job is None:
        return Delivery.GONE if tx.value(STATUS, (job_id,)) is None else Delivery.ENDED
    return _record(tx, job, event.event_id, Sent(event.name, event.payload, now, None, event.by), now)


def _send_to_key(tx: Tx, event: NewEvent, now: Instant) -> Delivery:
    key = event.key or ""
    box = Mailbox.of(tx.value(MAILBOX, (key,)))
    if box.knows(event.event_id):
        return Delivery.REPEATED
    sent = Sent(event.name, event.payload, now, key, event.by)
    gone: list[Listener] = []
    for listener in box.listeners_of(event.name):
        job = sqlite_places.standing(tx, listener.job_id)
        if job is not None and _record(tx, job, event.event_id, sent, now) is Delivery.RECORDED:
            _save(tx, key, box.delivered(event.event_id, listener, gone), now)
            return Delivery.RECORDED
        gone.append(listener)
    kept = box.keeping(event, now, gone)
    if kept is None:
        return Delivery.FULL
    _save(tx, key, kept, now)
    return Delivery.KEPT


def _save(tx: Tx, key: str, box: Mailbox, now: Instant) -> None:
    tx.connection.execute(SAVE_MAILBOX, (key, box.stored, now + waits.KEPT_MICROS))


def _record(tx: Tx, job: Standing, event_id: str, sent: Sent, now: Instant) -> Delivery:
    if tx.value(KNOWS_SENT, (job.job_id, event_id)):
        return Delivery.REPEATED
    if job.status in TERMINAL:
        return Delivery.ENDED
    if tx.value(COUNT_SENT, (job.job_id,)) >= JOB_EVENTS_MAX:
        return Delivery.FULL
    tx.connection.execute(SAVE_SENT, (job.job_id, event_id, waits.encoded(sent), job.attempt, now))
    if job.status is Status.WAITING and (found := after_event(job, event_id, sent, now)) is not None:
        _write(tx, found, now)
    return Delivery.RECORDED


def _write(tx: Tx, found: Move, now: Instant) -> None:
    sqlite_places.write(tx, found)
    note(tx, found, now)


# Waiting


def resume_if_sent(tx: Tx, job: Standing, seen: int | None, now: Instant) -> None:
    """Resume a job that has just begun to wait, if more events were sent to it than its last attempt has seen."""
    if seen is not None and tx.value(COUNT_SENT, (job.job_id,)) != seen:
        _write(tx, after_missed_event(job, now), now)


def listen_for(tx: Tx, hold: Hold, wait: EventWait, now: Instant, verdict: Verdict) -> Verdict:
    """Let a wait listen, given whether its claim holds."""
    if verdict is not Verdict.APPLIED:
        return verdict
    if waits.next_event(inbox(tx.connection, hold.job_id), wait) is not None:
        return Verdict.APPLIED  # it has one already, since an earlier attempt: the next is for others
    key = wait.key or ""
    box, kept = Mailbox.of(tx.value(MAILBOX, (key,))).listening(Listener(wait.name, hold.job_id, wait.wait), now)
    if box.is_crowded:
        return Verdict.BLOCKED
    _save(tx, key, box, now)
    if kept is not None and not tx.value(KNOWS_SENT, (hold.job_id, kept.event_id)):
        sent = waits.encoded(kept.sent(key))
        tx.connection.execute(SAVE_SENT, (hold.job_id, kept.event_id, sent, hold.attempt, now))
    return Verdict.APPLIED


def stop_listening(tx: Tx, hold: Hold, wait: EventWait, now: Instant, verdict: Verdict) -> Verdict:
    if verdict is Verdict.APPLIED and (stored := tx.value(MAILBOX, (wait.key or "",))) is not None:
        _save(tx, wait.key or "", Mailbox.of(stored).without(Listener(wait.name, hold.job_id, wait.wait)), now)
    return verdict


# Time


def time_out(tx: Tx, now: Instant, limit: int) -> int:
    """Resume jobs whose wait has timed out; return how many."""
    moves = [after_timeout(job, now) for job in _standing(tx, tx.rows(TIMED_OUT, (now, limit)))]
    for found in moves:
        if found is not None:
            _write(tx, found, now)
    return sum(found is not None for found in moves)


def _standing(tx: Tx, ids: Iterable[tuple[Any, ...]]) -> list[Standing]:
    return list(sqlite_places.standings(tx, [job_id for (job_id,) in ids]).values())


def next_timeout(connection: apsw.Connection) -> Instant | None:
    due: Instant | None = sqlite_connection.value(connection, NEXT_TIMEOUT)
    return due


def has_old_mailboxes(connection: apsw.Connection, now: Instant) -> bool:
    return bool(sqlite_connection.rows(connection, OLD_MAILBOXES, (now, 1)))


def drop_old_mailboxes(tx: Tx, now: Instant, limit: int) -> None:
    """Delete events that no wait has listened for in time, and waits of jobs that have ended."""
    for key, content in tx.rows(OLD_MAILBOXES, (now, limit)):
        box = Mailbox.of(content)
        standing = sqlite_places.standings(tx, [each.job_id for each in box.listeners])
        left = box.pruned({job_id for job_id, job in standing.items() if job.status not in TERMINAL}, now)
        if left.is_empty:
            tx.connection.execute(DROP_MAILBOX, (key,))
        else:
            _save(tx, key, left, now)

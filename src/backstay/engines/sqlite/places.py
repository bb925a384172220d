"""Places on SQLite: read where jobs stand, and write the moves that engines/places.py decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from backstay.core.records import Transition
from backstay.core.states import Status
from backstay.engines.places import (
    ENDED,
    EVENT,
    LATER,
    LATEST_MAX,
    READY,
    RUNNING,
    WAITING,
    EventRow,
    Move,
    Standing,
    is_repeat,
    moved_tally,
    standing_from,
    trimmed,
)
from backstay.engines.sqlite.connection import load
from backstay.engines.sqlite.writer import Tx

STANDINGS = load("standings")
ENTER = {place: load(f"enter_{place}") for place in (READY, LATER, WAITING, ENDED)}
LEAVE_READY = load("leave_ready")
LEAVE = {place: load(f"leave_{place}") for place in (LATER, WAITING, RUNNING, ENDED)}
STAY_RUNNING = load("stay_running")
REVISE = load("revise")
WRITE_DETAIL = load("write_detail")
WRITE_EVENT = load("write_event")
LATEST_OF = load("latest_of")
LINES_OF = load("lines_of")
AWAITED_READY = load("awaited_ready")
AWAITED = [load(f"awaited_{place}") for place in (LATER, WAITING, RUNNING)]
TRIM_HISTORY = load("trim_history")


def standings(tx: Tx, job_ids: Sequence[str]) -> dict[str, Standing]:
    found = map(standing_from, tx.rows(STANDINGS, (msgspec.json.encode(job_ids).decode(),)))
    return {each.job_id: each for each in found}


def standing(tx: Tx, job_id: str) -> Standing | None:
    return standings(tx, [job_id]).get(job_id)


def write(tx: Tx, move: Move) -> None:
    before, after = move.before, move.after
    if before.place == after.place == RUNNING:
        tx.connection.execute(STAY_RUNNING, (after.version, before.kind != after.kind, after.key))
    else:
        leave(tx, before)
        enter(tx, after.place, move.place_row())
    for change in moved_tally(before, after):
        tx.tally(*change)
    write_events(tx, after.key, move.events)
    if move.writes_detail:
        tx.connection.execute(WRITE_DETAIL, move.detail_row())
    if (revision := move.revision) is not None:
        row = {"seq": after.key, "payload": revision.payload, "version": revision.payload_version}
        tx.connection.execute(REVISE, row)


def enter(tx: Tx, place: str, row: dict[str, Any]) -> None:
    tx.connection.execute(ENTER[place], row)


def leave(tx: Tx, job: Standing) -> None:
    if job.place == READY:
        fair = job.fairness_key is not None
        line = (job.queue, job.job_type, fair, job.parked, job.priority, job.scheduled_for, job.job_id)
        tx.connection.execute(LEAVE_READY, line)
    else:
        tx.connection.execute(LEAVE[job.place], (job.key,))


def write_events(tx: Tx, seq: int, events: Iterable[EventRow]) -> None:
    for event in events:
        write_event(tx, seq, event)
        trim(tx, seq, event.version)


def write_event(tx: Tx, seq: int, event: EventRow) -> None:
    row = {name: getattr(event, name) for name in EVENT}
    if event.details is not None:
        row["details"] = msgspec.json.encode(event.details).decode()
    tx.connection.execute(WRITE_EVENT, {"seq": seq, **row})


def trim(tx: Tx, seq: int, version: int) -> None:
    """Drop the middle of a history that has just got an event of this version."""
    if (span := trimmed(version)) is not None:
        tx.connection.execute(TRIM_HISTORY, (seq, *span))


def set_awaited(tx: Tx, seqs: Sequence[int]) -> None:
    """Note that jobs wait on these, so that their end leaves the common path."""
    encoded = msgspec.json.encode(seqs).decode()
    for statement in AWAITED:
        tx.connection.execute(statement, (encoded,))
    tx.connection.executemany(AWAITED_READY, tx.rows(LINES_OF, (encoded,)))


def was_applied(tx: Tx, t: Transition, job: Standing) -> bool:
    """Return whether a transition that its guards refuse was applied by an earlier try."""
    if t.token is None or job.status is Status.PROCESSING:
        return False
    latest = tx.rows(LATEST_OF, (job.key, LATEST_MAX))
    return is_repeat(t, job, [(event, attempt, token) for event, attempt, token in latest])

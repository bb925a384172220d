"""apply, extend, note, record_step: every write of a claim's holder, and of editors and rescuers, with its guards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.clock import Instant
from holdfast.lifecycle import TERMINAL, Event, Status, Transition, also_counted, bucket_of, counted
from holdfast.limits import ERRORS_KEPT_MAX
from holdfast.store.types import Hold, Note, Signal, Verdict
from holdfast.stores import history
from holdfast.stores.sqlite import dedup, effects, rating, reading, releasing, unpacking
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx
from holdfast.stores.transitions import (
    Standing,
    check_all,
    held,
    is_plain_completion,
    left_their_place,
    signals_of,
)
from holdfast.trees import Brood, TriggerRule, again, moved

COMPLETE = load("complete")
APPLY = load("apply")
OUTCOMES_OF = load("outcomes_of")
UNMEET = load("unmeet")
AWAITED_BY = load("awaited_by")
EXTEND = load("extend")
NOTE = load("note")
RECORD_STEP = load("record_step")
_COMPLETED_CHILD = moved(Status.PROCESSING, Status.COMPLETED)
_COMPLETED = f',{{}},"{Event.COMPLETE.value}","{Status.PROCESSING.value}","{Status.COMPLETED.value}",'


def apply(tx: Tx, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
    check_all(transitions)
    verdicts: list[Verdict] = [Verdict.APPLIED] * len(transitions)
    plain: list[int] = []
    slow: list[int] = []
    for i, transition in enumerate(transitions):
        (plain if is_plain_completion(transition) else slow).append(i)
    if plain:
        slow = sorted(slow + _complete(tx, transitions, plain, now))
        tx.signals.add(Signal.ENDED)
    for i in slow:
        verdicts[i] = _apply_one(tx, transitions[i], now)
    if slow:
        _after(tx, [transitions[i] for i in slow if verdicts[i] is Verdict.APPLIED], now)
    elif tx.broods:
        releasing.spread(tx, (), now)
    return verdicts


def _complete(tx: Tx, transitions: Sequence[Transition], plain: list[int], now: Instant) -> list[int]:
    """All that can be, as one statement; the positions of those that were not: awaited, keyed or refused."""
    chosen = [transitions[i] for i in plain]
    batch = [(t.job_id, t.attempt, t.token, t.result, t.by, t.parent_job_id) for t in chosen]
    tx.execute("SAVEPOINT complete")
    tx.execute(COMPLETE, {"now": now, "event": _COMPLETED.format(now), "batch": msgspec.json.encode(batch).decode()})
    changed = tx.connection.changes()
    done = {t.job_id: t for t in chosen}
    if changed < len(plain):
        standing = _standing(tx, list(done))
        done = {t.job_id: t for t in chosen if standing.get(t.job_id) == _completed_by(t)}
    if changed != len(done):
        # Some were completed, and counted, by an earlier try of this write. Which, only a look at each by itself tells.
        tx.execute("ROLLBACK TO complete")
        done = {}
    tx.execute("RELEASE complete")
    _count(tx, list(done.values()), now)
    for t in done.values():
        tx.broods.add(t.parent_job_id, _COMPLETED_CHILD)
    return [i for i in plain if transitions[i].job_id not in done] if len(done) < len(plain) else []


def _count(tx: Tx, applied: Sequence[Transition], now: Instant) -> None:
    for t in applied:
        outcome = counted(t.event, t.target)
        if outcome is not None:
            bucket = bucket_of(outcome, t.source, t.ran_micros, t.waited_micros)
            tx.count(t.kind, outcome, now, 1, t.ran_micros, t.waited_micros, bucket)
        if (beside := also_counted(t.event)) is not None:
            tx.count(t.kind, beside, now)


def _completed_by(t: Transition) -> tuple[str, int, str | None]:
    return Status.COMPLETED.value, t.attempt, t.token


def _apply_one(tx: Tx, t: Transition, now: Instant) -> Verdict:
    unmet = None
    if t.event is Event.MANUAL_RETRY:
        if isinstance(found := _run_again(tx, t, now), Verdict):
            return found
        if unmet := found:
            t = msgspec.structs.replace(t, target=Status.WAITING)
    error = t.error
    changed = tx.row(
        APPLY,
        {
            "job_id": t.job_id,
            "source": t.source.value,
            "target": t.target.value,
            "attempt": t.attempt,
            "version": t.version,
            "token": t.token,
            "lease": t.lease,
            "now": now,
            "scheduled_for": t.scheduled_for,
            "priority": t.priority,
            "failures": t.failures,
            "snoozes": t.snoozes,
            "give_backs": t.give_backs,
            "waits": t.waits,
            "awaits": None if t.awaits is None else str(t.awaits),
            "join": t.join,
            "unmet": unmet,
            "progress": t.progress,
            "stage": t.stage,
            "clear_result": int(t.clear_result),
            "result": t.result,
            "result_artifact": t.result_artifact,
            "logs": t.logs,
            "log_location": t.log_location,
            "metrics": t.metrics,
            "artifacts": t.artifacts,
            "last_error": None if error is None else f"{error.type}: {error.message}",
            "error": None if error is None else msgspec.json.encode(error).decode(),
            "errors_kept": ERRORS_KEPT_MAX,
            "event": history.event_tail(now, t.event, t.source, t.target, t.attempt, t.by, t.reason),
        },
    )
    if changed is None:
        return _why_not(tx, t)
    _count(tx, [t], now)
    if (t.source in TERMINAL) != (t.target in TERMINAL):
        tx.broods.add(changed[0], moved(t.source, t.target))
    if t.event is Event.MANUAL_RETRY:
        dedup.guard_again(tx, t.job_id, now)
        if unmet:
            tx.execute(UNMEET, (t.job_id,))
            tx.execute(AWAITED_BY, (t.job_id,))
    if t.effects:
        effects.run(tx.connection, t.job_id, t.effects)
    if t.children or t.staged is not None:
        unpacking.bring(tx, t, now)
    if t.awaits is not None:
        tx.broods.add(t.job_id, Brood())  # it is judged with the others: none may be open
    return Verdict.APPLIED


def _run_again(tx: Tx, t: Transition, now: Instant) -> Verdict | int:
    """How many an ended job that is to run again has to wait for; or why it may not. 0 also where the guards of the
    transition will refuse it."""
    row = _standing(tx, [t.job_id]).get(t.job_id)
    if row is None or row[0] != t.source:
        return 0
    rule = tx.value("SELECT trigger_rule FROM job WHERE job_id = ?", (t.job_id,))
    outcomes = {Status(status): count for status, count in tx.rows(OUTCOMES_OF, (t.job_id,))}
    stands = again(rule=TriggerRule(rule or TriggerRule.ALL_SUCCESS), outcomes=outcomes)
    if stands.blocked or (stands.unmet and not t.rewait):
        return Verdict.BLOCKED
    return stands.unmet if dedup.may_guard_again(tx, t.job_id, now) else Verdict.TAKEN


def _why_not(tx: Tx, t: Transition) -> Verdict:
    row = _standing(tx, [t.job_id]).get(t.job_id)
    if row is None:
        return Verdict.GONE
    status, attempt, token = row
    # The token outlives only its holder's own settlement: this write, or an earlier try of it, is in.
    ours = t.token is not None and token == t.token and attempt == t.attempt and status != Status.PROCESSING
    return Verdict.APPLIED if ours and _is_on_record(tx, t) else Verdict.STALE


def _is_on_record(tx: Tx, t: Transition) -> bool:
    """The claim was settled by its holder; this tells whether as `t` says, or otherwise by an earlier write."""
    event = f'"{t.event.value}","{t.source.value}","{t.target.value}",{t.attempt},'
    return bool(tx.value("SELECT instr(history, ?) FROM job WHERE job_id = ?", (event, t.job_id)))


def _standing(tx: Tx, job_ids: list[str]) -> dict[str, Standing]:
    found = tx.rows(reading.STANDING, (msgspec.json.encode(job_ids).decode(),))
    return {row[0]: (row[1], row[2], row[3]) for row in found}


def _after(tx: Tx, applied: list[Transition], now: Instant) -> None:
    """What follows in the same commit: dependents released, parked jobs let in, signals noted."""
    ended = [t.job_id for t in applied if t.target in TERMINAL]
    dependents, keys = releasing.anyone_waits(tx)
    if not dependents:
        ended = []
    if ended or tx.broods:
        releasing.spread(tx, ended, now)
    if applied and keys:
        releasing.unpark_keys_of(tx, [t.job_id for t in applied])
    if left := left_their_place(applied):
        rating.left_sight_by_id(tx, left, now)
    tx.signals |= signals_of(applied)


def extend(tx: Tx, holds: Sequence[Hold], lease_expires_at: Instant) -> list[Verdict]:
    batch = [(hold.job_id, hold.attempt, hold.token) for hold in holds]
    tx.execute(EXTEND, {"lease": lease_expires_at, "batch": msgspec.json.encode(batch).decode()})
    if tx.connection.changes() == len(holds):
        return [Verdict.APPLIED] * len(holds)
    standing = _standing(tx, [hold.job_id for hold in holds])
    return [held(hold, standing.get(hold.job_id)) for hold in holds]


def note(tx: Tx, notes: Sequence[Note], now: Instant) -> list[Verdict]:
    return [_note_one(tx, each, now) for each in notes]


def _note_one(tx: Tx, note: Note, now: Instant) -> Verdict:
    bindings: dict[str, Any] = {
        "job_id": note.hold.job_id,
        "attempt": note.hold.attempt,
        "token": note.hold.token,
        "now": now,
        "progress": note.progress,
        "stage": note.stage,
        "logs": note.logs,
        "log_location": note.log_location,
        "metrics": note.metrics,
        "artifacts": note.artifacts,
    }
    tx.execute(NOTE, bindings)
    if tx.connection.changes():
        return Verdict.APPLIED
    return held(note.hold, _standing(tx, [note.hold.job_id]).get(note.hold.job_id))


def record_step(tx: Tx, hold: Hold, name: str, answer: str, now: Instant) -> Verdict:
    bindings = {
        "job_id": hold.job_id,
        "attempt": hold.attempt,
        "token": hold.token,
        "name": name,
        "answer": answer,
        "now": now,
    }
    tx.execute(RECORD_STEP, bindings)
    return held(hold, _standing(tx, [hold.job_id]).get(hold.job_id))

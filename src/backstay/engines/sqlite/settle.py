"""`apply` on SQLite, and the other writes of a claim's holder: extend, note, steps, children, effects.

What a run stages means nothing until its settlement names it. Then the parent counts one more open child than it has
(the hold), so that it cannot proceed before all are stored, and a mark tells maintenance to continue: each part is
stored and removed in one transaction, and the last removes the hold and the mark. A handler's own statements run in the
commit of its completion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import apsw
import msgspec

from backstay.clock import Instant
from backstay.core.dependencies import Brood, TriggerRule, again, moved
from backstay.core.records import Effect, Hold, Inserted, NewJob, Note, Page, Signal, Staged, Transition, Verdict
from backstay.core.states import TERMINAL, Event, Status, also_counted, bucket_of, counted
from backstay.engines import sql_rows
from backstay.engines.sql_rows import CurrentState, check_all, held, is_plain_completion, left_their_place, signals_of
from backstay.engines.sqlite import admission, insert, read, release
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite.connection import load
from backstay.engines.sqlite.writer import Tx
from backstay.errors import EffectFailed, InvalidSubmission
from backstay.limits import ERRORS_KEPT_MAX

# Statements that would end, hide or leave the transaction that they must be part of.
_FORBIDDEN = frozenset(
    {
        apsw.SQLITE_TRANSACTION,
        apsw.SQLITE_SAVEPOINT,
        apsw.SQLITE_ATTACH,
        apsw.SQLITE_DETACH,
        apsw.SQLITE_PRAGMA,
        apsw.SQLITE_CREATE_VTABLE,
        apsw.SQLITE_DROP_VTABLE,
    }
)


_WRITES = frozenset({apsw.SQLITE_INSERT, apsw.SQLITE_UPDATE, apsw.SQLITE_DELETE, apsw.SQLITE_ALTER_TABLE})
_SCHEMA = frozenset(
    {
        apsw.SQLITE_DROP_TABLE,
        apsw.SQLITE_DROP_INDEX,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_CREATE_INDEX,
    }
)
_OURS = frozenset(
    {
        *("job", "edge", "release_due", "dedup", "step", "worker", "job_type", "meta"),
        *("staged", "unpack_due", "result_table"),
    }
)


def run(connection: apsw.Connection, job_id: str, effects: Sequence[Effect]) -> None:
    connection.authorizer = _guard(connection)
    try:
        for statement, parameters in effects:
            for value in parameters:
                if not (value is None or isinstance(value, str | int | float | bytes)):
                    raise TypeError(f"parameter {value!r:.80}: SQLite takes None, strings, numbers and bytes")
            connection.execute(statement, parameters)
        if connection.status(apsw.SQLITE_DBSTATUS_DEFERRED_FKS)[0]:
            raise EffectFailed("a deferred foreign key is not satisfied", job_id=job_id)
    except (apsw.FullError, apsw.IOError, apsw.BusyError):
        raise  # not caused by the statement: the whole group is repeated
    except (apsw.Error, TypeError, ValueError, OverflowError) as error:
        raise EffectFailed(f"{type(error).__name__}: {error}", job_id=job_id) from None
    finally:
        connection.authorizer = None


def _guard(connection: apsw.Connection) -> Callable[..., int]:
    """Deny writes to Backstay's tables: those change only through the lifecycle, and result rows only through their
    run. No temporary table may shadow one."""
    named = [name for (name,) in sqlite_connection.rows(connection, "SELECT name FROM result_table")]
    ours = _OURS.union(f"result_{name}" for name in named)

    def authorize(operation: int, first: str | None, second: str | None, database: str | None, *_: Any) -> int:
        if database == "temp" or operation in _FORBIDDEN:
            return apsw.SQLITE_DENY
        touched = {first} if operation == apsw.SQLITE_UPDATE else {first, second}  # for an update, this is a column
        changes = operation in _WRITES or operation in _SCHEMA
        return apsw.SQLITE_DENY if changes and not touched.isdisjoint(ours) else apsw.SQLITE_OK

    return authorize


STALE = load("staged_stale")
_STALE_MAX = 100  # parts removed at once
_COUNT = "SELECT count(*) FROM staged WHERE job_id = ? AND attempt = ? AND part < ?"
_DROP_FROM = "DELETE FROM staged WHERE job_id = ? AND attempt = ? AND part >= ?"
_NEXT = "SELECT part, jobs FROM staged WHERE job_id = ? AND attempt = ? ORDER BY part LIMIT 2"
_jobs = msgspec.msgpack.Decoder(list[NewJob])


def store_part(tx: Tx, hold: Hold, part: int, jobs: Sequence[NewJob]) -> None:
    tx.connection.execute(
        "INSERT OR REPLACE INTO staged (job_id, attempt, part, jobs) VALUES (?, ?, ?, ?)",
        (hold.job_id, hold.attempt, part, msgspec.msgpack.encode(list(jobs))),
    )


def bring(tx: Tx, t: Transition, now: Instant) -> None:
    """Store the children of a transition that has just been applied."""
    try:
        if t.children:
            insert.insert(tx, t.children, now, admitted=True)
    except InvalidSubmission as error:
        raise EffectFailed(f"{type(error).__name__}: {error}", job_id=t.job_id) from None
    if t.staged is not None:
        _name(tx, t, t.staged)


def _name(tx: Tx, t: Transition, staged: Staged) -> None:
    if tx.value(_COUNT, (t.job_id, t.attempt, staged.parts)) != staged.parts:
        raise EffectFailed("children staged by this run are missing", job_id=t.job_id)
    tx.connection.execute(
        _DROP_FROM, (t.job_id, t.attempt, staged.parts)
    )  # of an earlier call within the attempt, that crashed
    tx.connection.execute("INSERT INTO unpack_due (job_id, attempt) VALUES (?, ?)", (t.job_id, t.attempt))
    tx.broods.add(t.job_id, Brood(open=1))


def unpack(tx: Tx, now: Instant, job_id: str | None = None) -> int:
    """Store the next part of a marked job, or of any; return how many jobs it had, at least one. 0 means there is
    none."""
    mark = tx.row("SELECT job_id, attempt FROM unpack_due WHERE ?1 IS NULL OR job_id = ?1 LIMIT 1", (job_id,))
    if mark is None:
        return 0
    parts = tx.rows(_NEXT, mark)
    jobs = _jobs.decode(parts[0][1]) if parts else []
    if parts:
        tx.connection.execute("DELETE FROM staged WHERE job_id = ? AND attempt = ? AND part = ?", (*mark, parts[0][0]))
    if len(parts) < 2:
        tx.connection.execute("DELETE FROM unpack_due WHERE job_id = ? AND attempt = ?", mark)
        tx.broods.add(mark[0], Brood(open=-1))
    else:
        tx.signals.add(Signal.UNFINISHED)  # the process may stop here, or die
    insert.insert(tx, jobs, now, admitted=True, promised=True)
    release.spread(tx, (), now)
    return max(1, len(jobs))


def drop_stale(tx: Tx) -> int:
    """Delete parts of ended attempts whose settlement did not name them."""
    tx.connection.execute(STALE, (_STALE_MAX,))
    return tx.connection.changes()


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
    verdicts: list[Verdict] = [Verdict.APPLIED] * len(transitions)
    plain: list[int] = []
    slow: list[int] = []
    for i, transition in enumerate(transitions):
        (plain if is_plain_completion(transition) else slow).append(i)
    if slow:
        check_all(transitions[i] for i in slow)
    if plain:
        slow = sorted(slow + _complete(tx, transitions, plain, now))
        tx.signals.add(Signal.ENDED)
    for i in slow:
        verdicts[i] = _apply_one(tx, transitions[i], now)
    if slow:
        _after(tx, [transitions[i] for i in slow if verdicts[i] is Verdict.APPLIED], now)
    elif tx.broods:
        release.spread(tx, (), now)
    return verdicts


def _complete(tx: Tx, transitions: Sequence[Transition], plain: list[int], now: Instant) -> list[int]:
    """Complete jobs in one statement where possible; return the positions of the others: awaited, with a key, or
    refused."""
    chosen = [transitions[i] for i in plain]
    batch = [(t.job_id, t.attempt, t.token, t.result, t.by, t.parent_job_id) for t in chosen]
    tx.connection.execute("SAVEPOINT complete")
    tx.connection.execute(
        COMPLETE, {"now": now, "event": _COMPLETED.format(now), "batch": msgspec.json.encode(batch).decode()}
    )
    changed = tx.connection.changes()
    done = {t.job_id: t for t in chosen}
    if changed < len(plain):
        standing = _standing(tx, list(done))
        done = {t.job_id: t for t in chosen if standing.get(t.job_id) == _completed_by(t)}
    if changed != len(done):
        # Some were completed, and counted, by an earlier try of this write. Only reading each one tells which.
        tx.connection.execute("ROLLBACK TO complete")
        done = {}
    tx.connection.execute("RELEASE complete")
    _count(tx, list(done.values()), now)
    for t in done.values():
        if t.parent_job_id is not None:
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
            "event": sql_rows.event_tail(now, t.event, t.source, t.target, t.attempt, t.by, t.reason),
        },
    )
    if changed is None:
        return _why_not(tx, t)
    _count(tx, [t], now)
    if (t.source in TERMINAL) != (t.target in TERMINAL):
        tx.broods.add(changed[0], moved(t.source, t.target))
    if t.event is Event.MANUAL_RETRY:
        insert.guard_again(tx, t.job_id, now)
        if unmet:
            tx.connection.execute(UNMEET, (t.job_id,))
            tx.connection.execute(AWAITED_BY, (t.job_id,))
    if t.effects:
        run(tx.connection, t.job_id, t.effects)
    if t.children or t.staged is not None:
        bring(tx, t, now)
    if t.awaits is not None:
        tx.broods.add(t.job_id, Brood())  # checked with the others: perhaps none is open
    return Verdict.APPLIED


def _run_again(tx: Tx, t: Transition, now: Instant) -> Verdict | int:
    """Return how many dependencies an ended job that is to run again has to wait for, or the verdict if it may not. 0
    also if the guards of the transition will refuse it."""
    row = _standing(tx, [t.job_id]).get(t.job_id)
    if row is None or row[0] != t.source:
        return 0
    rule = tx.value("SELECT trigger_rule FROM job WHERE job_id = ?", (t.job_id,))
    outcomes = {Status(status): count for status, count in tx.rows(OUTCOMES_OF, (t.job_id,))}
    stands = again(rule=TriggerRule(rule or TriggerRule.ALL_SUCCESS), outcomes=outcomes)
    if stands.blocked or (stands.unmet and not t.rewait):
        return Verdict.BLOCKED
    return stands.unmet if insert.may_guard_again(tx, t.job_id, now) else Verdict.TAKEN


def _why_not(tx: Tx, t: Transition) -> Verdict:
    row = _standing(tx, [t.job_id]).get(t.job_id)
    if row is None:
        return Verdict.GONE
    status, attempt, token = row
    # The token is kept only by its holder's own settlement: this write, or an earlier try of it, was applied.
    ours = t.token is not None and token == t.token and attempt == t.attempt and status != Status.PROCESSING
    return Verdict.APPLIED if ours and _is_on_record(tx, t) else Verdict.STALE


def _is_on_record(tx: Tx, t: Transition) -> bool:
    """Return whether a claim that its holder has settled was settled by `t`, and not by a different earlier write."""
    event = f'"{t.event.value}","{t.source.value}","{t.target.value}",{t.attempt},'
    return bool(tx.value("SELECT instr(history, ?) FROM job WHERE job_id = ?", (event, t.job_id)))


def _standing(tx: Tx, job_ids: list[str]) -> dict[str, CurrentState]:
    found = tx.rows(read.STANDING, (msgspec.json.encode(job_ids).decode(),))
    return {row[0]: (row[1], row[2], row[3]) for row in found}


def _after(tx: Tx, applied: list[Transition], now: Instant) -> None:
    """Do what follows in the same commit: release dependents, unpark jobs, record signals."""
    ended = [t.job_id for t in applied if t.target in TERMINAL]
    dependents, keys = release.anyone_waits(tx)
    if not dependents:
        ended = []
    if ended or tx.broods:
        release.spread(tx, ended, now)
    if applied and keys:
        release.unpark_keys_of(tx, [t.job_id for t in applied])
    if left := left_their_place(applied):
        admission.left_sight_by_id(tx, left, now)
    tx.signals |= signals_of(applied)


def extend(tx: Tx, holds: Sequence[Hold], lease_expires_at: Instant) -> list[Verdict]:
    batch = [(hold.job_id, hold.attempt, hold.token) for hold in holds]
    tx.connection.execute(EXTEND, {"lease": lease_expires_at, "batch": msgspec.json.encode(batch).decode()})
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
    tx.connection.execute(NOTE, bindings)
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
    tx.connection.execute(RECORD_STEP, bindings)
    return held(hold, _standing(tx, [hold.job_id]).get(hold.job_id))


CHILDREN = (
    read.GET[: read.GET.index("FROM job")]
    + "FROM job INDEXED BY job_parent WHERE parent_job_id = :parent AND job_id > :after"
    " AND (:status IS NULL OR status = :status) ORDER BY job_id LIMIT :limit"
)


def insert_children(tx: Tx, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
    return insert.insert(tx, jobs, now) if _held(tx, hold) is Verdict.APPLIED else None


def stage(tx: Tx, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
    verdict = _held(tx, hold)
    if verdict is Verdict.APPLIED:
        store_part(tx, hold, part, jobs)
    return verdict


def _held(tx: Tx, hold: Hold) -> Verdict:
    row = tx.row(read.STANDING, (msgspec.json.encode([hold.job_id]).decode(),))
    return held(hold, None if row is None else (row[1], row[2], row[3]))


def children(connection: apsw.Connection, job_id: str, after: str | None, limit: int, status: Status | None) -> Page:
    asked = {
        "parent": job_id,
        "after": after or "",
        "status": None if status is None else status.value,
        "limit": limit + 1,
    }
    found = sqlite_connection.rows(connection, CHILDREN, asked)
    items = tuple(read.with_edges(connection, row) for row in found[:limit])
    return Page(items, items[-1].job_id if len(found) > limit else None)

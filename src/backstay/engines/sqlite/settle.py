"""`apply` on SQLite, and the other writes of a claim's holder: extend, note, steps, children.

What a run stages means nothing until its settlement names it. Then the parent counts one more open child than it has
(the hold), so that it cannot proceed before all are stored, and a mark tells maintenance to continue: each part is
stored and removed in one transaction, and the last removes the hold and the mark.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import apsw
import msgspec

from backstay.clock import Instant
from backstay.core.dependencies import Brood, TriggerRule, again, moved
from backstay.core.output import OutputPart
from backstay.core.records import (
    Hold,
    Inserted,
    Kind,
    NewJob,
    Note,
    Page,
    Signal,
    Staged,
    Transition,
    Verdict,
)
from backstay.core.states import TERMINAL, Counted, Event, Status, also_counted, bucket_of, bucket_of_attempt, counted
from backstay.core.waits import EventWait, StepKind
from backstay.engines.places import Move, Standing, decide, is_fast_completion, token_key
from backstay.engines.sql_rows import check_all, holds_by_key
from backstay.engines.sqlite import connection as sqlite_connection
from backstay.engines.sqlite import effects, insert, read, release, waits
from backstay.engines.sqlite import places as sqlite_places
from backstay.engines.sqlite.connection import load
from backstay.engines.sqlite.writer import Tx
from backstay.errors import EffectFailed, InvalidSubmission

STALE = load("staged_stale")
_STALE_MAX = 100  # parts removed at once
STORE_PART = load("store_part")
COUNT_PARTS = load("count_parts")
DROP_PARTS_FROM = load("drop_parts_from")
SAVE_UNPACK = load("save_unpack")
UNPACK_MARK = load("unpack_mark")
NEXT_PARTS = load("next_parts")
DROP_PART = load("drop_part")
UNPACKED = load("unpacked")
_jobs = msgspec.msgpack.Decoder(list[NewJob])


def store_part(tx: Tx, hold: Hold, part: int, jobs: Sequence[NewJob]) -> None:
    tx.connection.execute(STORE_PART, (hold.job_id, hold.attempt, part, msgspec.msgpack.encode(list(jobs))))


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
    if tx.value(COUNT_PARTS, (t.job_id, t.attempt, staged.parts)) != staged.parts:
        raise EffectFailed("children staged by this run are missing", job_id=t.job_id)
    # Of an earlier call within the attempt, that crashed.
    tx.connection.execute(DROP_PARTS_FROM, (t.job_id, t.attempt, staged.parts))
    tx.connection.execute(SAVE_UNPACK, (t.job_id, t.attempt))
    tx.broods.add(t.job_id, Brood(open=1))


def unpack(tx: Tx, now: Instant, job_id: str | None = None) -> int:
    """Store the next part of a marked job, or of any; return how many jobs it had, at least one. 0 means there is
    none."""
    mark = tx.row(UNPACK_MARK, (job_id,))
    if mark is None:
        return 0
    parent, attempt = mark
    parts = tx.rows(NEXT_PARTS, mark)
    jobs: list[NewJob] = []
    if parts:
        part, packed = parts[0]
        jobs = _jobs.decode(packed)
        tx.connection.execute(DROP_PART, (parent, attempt, part))
    if len(parts) < 2:
        tx.connection.execute(UNPACKED, mark)
        tx.broods.add(parent, Brood(open=-1))
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
COMPLETED = load("completed")
COMPLETED_SOME = load("completed_some")
KEEP_ARTIFACT = load("keep_artifact")
KEEP_REPORTS = load("keep_reports")
OUTCOMES_OF = load("outcomes_of")
UNMEET = load("unmeet")
AWAITED_BY = load("awaited_by")
EXTEND = load("extend")
HOLDING = load("holding")
NOTE = load("note")
RECORD_STEP = load("record_step")
FORGET_STEPS = load("forget_steps")
_COMPLETED_CHILD = moved(Status.PROCESSING, Status.COMPLETED)


def apply(tx: Tx, transitions: Sequence[Transition], now: Instant) -> list[Verdict]:
    verdicts: list[Verdict] = [Verdict.APPLIED] * len(transitions)
    fast: dict[str, int] = {}
    slow: list[int] = []
    for i, transition in enumerate(transitions):
        if is_fast_completion(transition) and fast.setdefault(transition.job_id, i) == i:
            continue
        slow.append(i)
    if slow:
        check_all(transitions[i] for i in slow)
    if fast:
        slow = sorted(slow + _complete(tx, transitions, list(fast.values()), now))
        tx.signals.add(Signal.ENDED)
    moves = []
    for i in slow:
        found = _apply_one(tx, transitions[i], now)
        if isinstance(found, Move):
            moves.append((transitions[i], found))
        else:
            verdicts[i] = found
    if slow:
        release.after_moves(tx, moves, now)
    elif tx.broods:
        release.spread(tx, (), now)
    return verdicts


def _complete(tx: Tx, transitions: Sequence[Transition], fast: list[int], now: Instant) -> list[int]:
    """Complete jobs in one statement where possible; return the positions of the others: awaited, with a key, or
    refused."""
    claims: dict[tuple[int, str | None, str | None, str | None], list[Transition]] = {}
    for i in fast:
        t = transitions[i]
        claims.setdefault((t.attempt, t.token, t.by, t.parent_job_id), []).append(t)
    gone: set[str] = set()
    done: list[Transition] = []
    for claim, chosen in claims.items():
        ended = _complete_claim(tx, claim, chosen, now)
        if len(ended) < len(chosen):
            gone.update(ended)
            done += [t for t in chosen if t.job_id in ended]
        else:
            gone.update(t.job_id for t in chosen)
            done += chosen
    _count_completed(tx, done, now)
    reports = []
    for t in done:
        if t.parent_job_id is not None:
            tx.broods.add(t.parent_job_id, _COMPLETED_CHILD)
        if not (t.logs is t.log_location is t.metrics is t.artifacts is None):
            reports.append((t.job_id, t.logs, t.log_location, t.metrics, t.artifacts))
        if t.result_artifact is not None:
            tx.connection.execute(KEEP_ARTIFACT, (t.result_artifact, t.job_id))
    if reports:
        tx.connection.execute(KEEP_REPORTS, {"batch": msgspec.json.encode(reports).decode()})
    return [i for i in fast if transitions[i].job_id not in gone] if len(done) < len(fast) else []


def _complete_claim(
    tx: Tx, claim: tuple[int, str | None, str | None, str | None], chosen: Sequence[Transition], now: Instant
) -> Collection[str]:
    """Complete jobs of one claim, and return the ids of those that were; not necessarily as a set if all were."""
    attempt, token, by, parent = claim
    batch = {"batch": msgspec.json.encode({t.job_id: t.result for t in chosen}).decode()}
    tx.connection.execute(
        COMPLETE,
        {
            "now": now,
            "attempt": attempt,
            "token": token_key(token or ""),
            "worker_id": by,
            "parent": parent,
            **batch,
        },
    )
    changed = tx.connection.changes()
    if changed == len(chosen):
        tx.connection.execute(COMPLETED, batch)
        return [t.job_id for t in chosen]
    return {job_id for (job_id,) in tx.rows(COMPLETED_SOME, batch)} if changed else set()


def _count_completed(tx: Tx, done: Sequence[Transition], now: Instant) -> None:
    """Count completions, which are many: what has the same kind and bucket is added up first."""
    sums: dict[tuple[Kind, int], list[int]] = {}
    for t in done:
        key = t.kind, bucket_of_attempt(t.ran_micros, t.waited_micros)
        if (found := sums.get(key)) is None:
            sums[key] = [1, t.ran_micros, t.waited_micros]
        else:
            found[0] += 1
            found[1] += t.ran_micros
            found[2] += t.waited_micros
    for (kind, bucket), (jobs, ran, waited) in sums.items():
        tx.count(kind, Counted.COMPLETED, now, jobs, ran, waited, bucket)
        tx.tally(kind, Status.COMPLETED.value, jobs)


def _count(tx: Tx, applied: Sequence[Transition], now: Instant) -> None:
    for t in applied:
        outcome = counted(t.event, t.target)
        if outcome is not None:
            bucket = bucket_of(outcome, t.source, t.ran_micros, t.waited_micros)
            tx.count(t.kind, outcome, now, 1, t.ran_micros, t.waited_micros, bucket)
        if (beside := also_counted(t.event)) is not None:
            tx.count(t.kind, beside, now)


def _apply_one(tx: Tx, t: Transition, now: Instant) -> Verdict | Move:
    job = sqlite_places.standing(tx, t.job_id)
    unmet = 0
    if t.event is Event.MANUAL_RETRY and job is not None and job.status is t.source:
        if isinstance(found := _run_again(tx, t, job, now), Verdict):
            return found
        unmet = found
    decided = decide(job, t, now, unmet=unmet)
    if job is None or isinstance(decided, Verdict):
        repeated = decided is Verdict.STALE and job is not None and sqlite_places.was_applied(tx, t, job)
        return Verdict.APPLIED if repeated else decided
    sqlite_places.write(tx, decided)
    _count(tx, [t if not unmet else msgspec.structs.replace(t, target=Status.WAITING)], now)
    after = decided.after
    if (t.source in TERMINAL) != (after.status in TERMINAL):
        tx.broods.add(job.parent_job_id, moved(t.source, after.status))
    if t.event is Event.MANUAL_RETRY:
        insert.guard_again(tx, t.job_id, now)
        if t.forget_steps:
            tx.connection.execute(FORGET_STEPS, (t.job_id, StepKind.OWN.value))
        if unmet:
            tx.connection.execute(UNMEET, (t.job_id,))
            sqlite_places.set_awaited(tx, [seq for (seq,) in tx.rows(AWAITED_BY, (t.job_id,))])
    if t.effects:
        effects.run(tx.connection, t.job_id, t.effects)
    if t.children or t.staged is not None:
        bring(tx, t, now)
    if isinstance(t.awaits, EventWait):
        waits.resume_if_sent(tx, after, t.seen, now)
    elif t.awaits is not None:
        tx.broods.add(t.job_id, Brood())  # checked with the others: perhaps none is open
    return decided


def _run_again(tx: Tx, t: Transition, job: Standing, now: Instant) -> Verdict | int:
    """Return how many dependencies an ended job that is to run again has to wait for, or the verdict if it may not."""
    outcomes = {Status(status): count for status, count in tx.rows(OUTCOMES_OF, (t.job_id,))}
    stands = again(rule=TriggerRule(job.trigger_rule), outcomes=outcomes)
    if stands.blocked or (stands.unmet and not t.rewait):
        return Verdict.BLOCKED
    return stands.unmet if insert.may_guard_again(tx, t.job_id, now) else Verdict.TAKEN


def extend(tx: Tx, holds: Sequence[Hold], lease_expires_at: Instant) -> list[Verdict]:
    batch = [(hold.job_id, hold.attempt, token_key(hold.token)) for hold in holds]
    tx.connection.execute(EXTEND, {"lease": lease_expires_at, "batch": msgspec.json.encode(batch).decode()})
    if tx.connection.changes() == len(holds):
        return [Verdict.APPLIED] * len(holds)
    return holding(tx, holds)


def holding(tx: Tx, holds: Sequence[Hold]) -> list[Verdict]:
    """Return which of these claims are still valid."""
    ids = msgspec.json.encode([hold.job_id for hold in holds]).decode()
    found = {job_id: (attempt, token) for job_id, attempt, token in tx.rows(HOLDING, (ids,))}
    return [holds_by_key(hold, found.get(hold.job_id)) for hold in holds]


def note(tx: Tx, notes: Sequence[Note], now: Instant) -> list[Verdict]:
    return [_note_one(tx, each, now) for each in notes]


def _note_one(tx: Tx, note: Note, now: Instant) -> Verdict:
    hold = note.hold
    tx.connection.execute(
        NOTE,
        {
            "job_id": hold.job_id,
            "attempt": hold.attempt,
            "token": token_key(hold.token),
            "now": now,
            "progress": note.progress,
            "stage": note.stage,
        },
    )
    if not tx.connection.changes():
        return holding(tx, [hold])[0]
    if not (note.logs is note.log_location is note.metrics is note.artifacts is None):
        report = (hold.job_id, note.logs, note.log_location, note.metrics, note.artifacts)
        tx.connection.execute(KEEP_REPORTS, {"batch": msgspec.json.encode([report]).decode()})
    return Verdict.APPLIED


def record_step(tx: Tx, hold: Hold, name: str, answer: str, now: Instant, kind: StepKind) -> Verdict:
    bindings = {
        "kind": kind.value,
        "job_id": hold.job_id,
        "attempt": hold.attempt,
        "token": token_key(hold.token),
        "name": name,
        "answer": answer,
        "now": now,
    }
    tx.connection.execute(RECORD_STEP, bindings)
    return holding(tx, [hold])[0]


APPEND_OUTPUT = load("append_output")
REPLACE_OUTPUT = load("replace_output")


def append_output(tx: Tx, parts: Sequence[OutputPart], now: Instant) -> list[Verdict]:
    for part in parts:
        hold = part.hold
        bindings = {
            "job_id": hold.job_id,
            "attempt": hold.attempt,
            "token": token_key(hold.token),
            "take": part.take,
            "first": part.first,
            "last": part.last,
            "size": part.size,
            "now": now,
            "text": part.text,
        }
        tx.connection.execute(APPEND_OUTPUT, bindings)
        if tx.connection.changes():
            tx.signals.add(Signal.OUTPUT)
            if part.first == 1:
                tx.connection.execute(REPLACE_OUTPUT, (hold.job_id, hold.attempt, part.take))
    return holding(tx, [part.hold for part in parts])


def listen_for(tx: Tx, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
    return waits.listen_for(tx, hold, wait, now, _held(tx, hold))


def stop_listening(tx: Tx, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
    return waits.stop_listening(tx, hold, wait, now, _held(tx, hold))


CHILDREN = load("children")


def insert_children(tx: Tx, hold: Hold, jobs: Sequence[NewJob], now: Instant) -> list[Inserted] | None:
    return insert.insert(tx, jobs, now) if _held(tx, hold) is Verdict.APPLIED else None


def stage(tx: Tx, hold: Hold, part: int, jobs: Sequence[NewJob], now: Instant) -> Verdict:
    verdict = _held(tx, hold)
    if verdict is Verdict.APPLIED:
        store_part(tx, hold, part, jobs)
    return verdict


def _held(tx: Tx, hold: Hold) -> Verdict:
    return holding(tx, [hold])[0]


def children(connection: apsw.Connection, job_id: str, after: str | None, limit: int, status: Status | None) -> Page:
    asked = {
        "parent": job_id,
        "after": after or "",
        "status": None if status is None else status.value,
        "limit": limit + 1,
    }
    found = [seq for (seq,) in sqlite_connection.rows(connection, CHILDREN, asked)]
    items = tuple(read.records(connection, found[:limit]))
    return Page(items, items[-1].job_id if len(found) > limit else None)

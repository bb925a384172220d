"""`apply` on PostgreSQL, and the other writes of a claim's holder: extend, note, steps, children, effects.

What a run stages means nothing until its settlement names it. Then the parent counts one more open child than it has
(the hold), so that it cannot proceed before all are stored, and a mark tells maintenance to continue: each part is
stored and removed in one transaction, and the last removes the hold and the mark.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from backstay.clock import Instant
from backstay.core.dependencies import Brood, TriggerRule, again, moved
from backstay.core.records import Hold, Inserted, NewJob, Note, Page, Signal, Staged, Transition, Verdict
from backstay.core.states import TERMINAL, Event, Status, also_counted, bucket_of, counted
from backstay.engines.postgres import admission, insert, read, release
from backstay.engines.postgres.connection import Tx, is_collision, is_outage, translate
from backstay.engines.postgres.insert import Terms
from backstay.engines.sql_rows import CurrentState, held, left_their_place, signals_of
from backstay.errors import EffectFailed, InvalidSubmission
from backstay.limits import ERRORS_KEPT_MAX

_STALE_MAX = 100  # parts removed at once
_jobs = msgspec.msgpack.Decoder(list[NewJob])


async def store_part(tx: Tx, hold: Hold, part: int, jobs: Sequence[NewJob]) -> bool:
    """Store a part; return whether the claim holds."""
    packed = msgspec.msgpack.encode(list(jobs))
    return bool(await tx.execute("stage", hold.job_id, hold.attempt, hold.token, part, packed))


async def bring(tx: Tx, t: Transition, client_now: Instant, now: Instant) -> None:
    """Store the children of a transition that has just been applied. Their times are those of the caller's clock."""
    if t.children:
        try:
            await insert.insert(tx, t.children, client_now, now, repeat=False, terms=Terms.ADMITTED)
        except asyncpg.PostgresError as error:
            refusal = translate(error, "")
            if not isinstance(refusal, InvalidSubmission):
                raise
            raise EffectFailed(f"{type(refusal).__name__}: {refusal}", job_id=t.job_id) from None
    if t.staged is not None:
        await _name(tx, t, t.staged)


async def _name(tx: Tx, t: Transition, staged: Staged) -> None:
    if await tx.value("name_staged", t.job_id, t.attempt, staged.parts) != staged.parts:
        raise EffectFailed("children staged by this run are missing", job_id=t.job_id)
    tx.broods.add(t.job_id, Brood(open=1))


async def unpack(tx: Tx, client_now: Instant, now: Instant, job_id: str | None) -> int:
    """Store the next part of a marked job, or of any; return how many jobs it had, at least one. 0 means there is
    none."""
    mark = await tx.row("unpack_mark", job_id)
    if mark is None:
        return 0
    packed, last = await tx.row("unpack_part", *mark) or (b"\x90", True)
    jobs = _jobs.decode(packed)
    if last:
        await tx.execute("unpacked", *mark)
        tx.broods.add(mark[0], Brood(open=-1))
    else:
        tx.signals.add(Signal.UNFINISHED)  # the process may stop here, or die
    await insert.insert(tx, jobs, client_now, now, repeat=False, terms=Terms.PROMISED)
    await release.spread(tx, (), now)
    return max(1, len(jobs))


async def drop_stale(tx: Tx) -> int:
    """Delete parts of ended attempts whose settlement did not name them."""
    return await tx.execute("staged_stale", _STALE_MAX)


_COMPLETED = moved(Status.PROCESSING, Status.COMPLETED)


async def complete(tx: Tx, plain: Sequence[Transition], store_now: Instant | None) -> set[str]:
    """Complete jobs in one statement where possible; return their ids. A job that is named twice is completed once.
    Children are left to the other two functions."""
    return {row[0] for row in await _complete(tx, plain, store_now, counting=False)}


async def complete_children(tx: Tx, plain: Sequence[Transition], store_now: Instant | None, at: Instant) -> set[str]:
    """The same for children, in a transaction that locks their parents first, because those count them."""
    await tx.rows("lock_parents", sorted({t.parent_job_id for t in plain if t.parent_job_id is not None}))
    done = await _complete(tx, plain, store_now, counting=True)
    for _, parent in done:
        tx.broods.add(parent, _COMPLETED)
    await release.spread(tx, (), at)
    return {row[0] for row in done}


async def _complete(tx: Tx, plain: Sequence[Transition], store_now: Instant | None, *, counting: bool) -> list[Any]:
    rows = await tx.rows(
        "complete",
        [t.job_id for t in plain],
        [t.attempt for t in plain],
        [t.token for t in plain],
        [t.result for t in plain],
        [_json(t.by) for t in plain],
        [t.kind[2] for t in plain],
        store_now,
        counting,
    )
    if rows:
        tx.signals.add(Signal.ENDED)
    return rows


@functools.lru_cache(maxsize=64)
def _json(by: str | None) -> str:
    return msgspec.json.encode(by).decode()


async def apply_each(
    tx: Tx, transitions: Sequence[Transition], now: Instant, repeat: bool, client_now: Instant
) -> list[Verdict]:
    """Apply transitions one by one, in one transaction that locks all their jobs first."""
    await _hold_dedup_keys(tx, [t.job_id for t in transitions if t.event is Event.MANUAL_RETRY])
    await tx.rows("lock_jobs", [t.job_id for t in transitions], [t.job_id for t in transitions if t.rewait])
    verdicts = [await _apply_one(tx, transition, now, repeat, client_now) for transition in transitions]
    applied = [t for t, verdict in zip(transitions, verdicts, strict=True) if verdict is Verdict.APPLIED]
    await _after(tx, applied, now)
    return verdicts


async def _hold_dedup_keys(tx: Tx, job_ids: list[str]) -> None:
    """Lock dedup keys before any row, in the same order as a submit: first the key's name, then the rows of the
    dependencies."""
    if job_ids and (keys := [row[0] for row in await tx.rows("dedup_keys_of", job_ids)]):
        await tx.rows("lock_names", [f"backstay dedup {key}" for key in keys])


async def _apply_one(tx: Tx, t: Transition, now: Instant, repeat: bool, client_now: Instant) -> Verdict:
    unmet = None
    if t.event is Event.MANUAL_RETRY:
        if isinstance(found := await _run_again(tx, t, now), Verdict):
            return found
        if unmet := found:
            t = msgspec.structs.replace(t, target=Status.WAITING)
    error = t.error
    changed = await tx.row(
        "apply",
        t.job_id,
        t.source.value,
        t.target.value,
        t.attempt,
        t.version,
        t.token,
        t.lease,
        now,
        t.priority,
        t.scheduled_for,
        t.failures,
        t.snoozes,
        t.give_backs,
        t.progress,
        t.stage,
        t.clear_result,
        t.result,
        t.result_artifact,
        t.logs,
        t.log_location,
        t.metrics,
        t.artifacts,
        None if error is None else f"{error.type}: {error.message}",
        None if error is None else msgspec.json.encode(error).decode(),
        ERRORS_KEPT_MAX,
        t.event.value,
        t.by,
        t.reason,
        unmet,
        None if t.awaits is None else str(t.awaits),
        t.waits,
        t.join,
    )
    if changed is None:
        return await _why_not(tx, t, repeat)
    if (outcome := counted(t.event, t.target)) is not None:
        bucket = bucket_of(outcome, t.source, t.ran_micros, t.waited_micros)
        tx.count(t.kind, outcome, now, 1, t.ran_micros, t.waited_micros, bucket)
    if (beside := also_counted(t.event)) is not None:
        tx.count(t.kind, beside, now)
    if (t.source in TERMINAL) != (t.target in TERMINAL):
        tx.broods.add(changed[0], moved(t.source, t.target))
    if t.event is Event.MANUAL_RETRY:
        await _guard_again(tx, t.job_id, now)
        if unmet:
            await tx.execute("unmeet", t.job_id)
    if t.effects:
        await _run_effects(tx, t)
    if t.children or t.staged is not None:
        await bring(tx, t, client_now, now)
    if t.awaits is not None:
        tx.broods.add(t.job_id, Brood())  # checked with the others: perhaps none is open
    return Verdict.APPLIED


async def _run_effects(tx: Tx, t: Transition) -> None:
    tx.unclean = True
    for statement, values in t.effects:
        try:
            # Always as a prepared statement, which is one command: no COMMIT can hide behind a semicolon.
            await tx.connection.fetch(statement, *values)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, TypeError) as error:
            if is_collision(error) or (is_outage(error) and tx.connection.is_closed()):
                raise
            said = " ".join(str(error).split())  # with the server's hints, the message has several lines
            raise EffectFailed(f"{type(error).__name__}: {said} in {statement[:200]!r}", job_id=t.job_id) from None


async def _run_again(tx: Tx, t: Transition, now: Instant) -> Verdict | int:
    """Return how many dependencies an ended job that is to run again has to wait for, or the verdict if it may not. 0
    also if the guards of the transition will refuse it."""
    row = (await _standing(tx, [t.job_id])).get(t.job_id)
    if row is None or row[0] != t.source:
        return 0
    outcomes = {Status(status): count for status, count in await tx.rows("outcomes_of", t.job_id)}
    stands = again(rule=TriggerRule(await tx.value("trigger_rule", t.job_id)), outcomes=outcomes)
    if stands.blocked or (stands.unmet and not t.rewait):
        return Verdict.BLOCKED
    key = await tx.value("dedup_key_of", t.job_id)
    target = None if key is None else await _living_target(tx, key, now)
    return stands.unmet if target is None or target == t.job_id else Verdict.TAKEN


async def _living_target(tx: Tx, key: str, now: Instant) -> str | None:
    row = await tx.row("guard_target", key)
    if row is None:
        return None
    status = await tx.value("status", row[0])
    if status is None:
        return None
    in_force = Status(status) not in TERMINAL if row[1] is None else now < row[1]
    return str(row[0]) if in_force else None


async def _guard_again(tx: Tx, job_id: str, now: Instant) -> None:
    """Give a job that runs again its dedup key back, for as long as before and at least while it is active."""
    key = await tx.value("dedup_key_of", job_id)
    if key is not None and await _living_target(tx, key, now) is None:
        await tx.execute("save_guard", key, job_id)


async def _why_not(tx: Tx, t: Transition, repeat: bool) -> Verdict:
    row = (await _standing(tx, [t.job_id])).get(t.job_id)
    if row is None:
        return Verdict.GONE
    status, attempt, token = row
    # The token is kept only by its holder's own settlement: this write, or an earlier try of it, was applied.
    ours = t.token is not None and token == t.token and attempt == t.attempt and status != Status.PROCESSING
    if not ours and not repeat:
        return Verdict.STALE
    # An earlier try may have been applied, although the job has changed since: then history has it.
    by = "" if ours else msgspec.json.encode(t.by).decode()
    version = None if t.version is None else t.version + 1
    for target in (Status.PENDING, Status.WAITING) if t.rewait else (t.target,):
        event = f'"{t.event.value}","{t.source.value}","{target.value}",{t.attempt},{by}'
        if await tx.value("on_record", t.job_id, event, version):
            return Verdict.APPLIED
    return Verdict.STALE


async def _standing(tx: Tx, job_ids: list[str]) -> dict[str, CurrentState]:
    return {row[0]: (row[1], row[2], row[3]) for row in await tx.rows("standing", job_ids)}


async def _after(tx: Tx, applied: list[Transition], now: Instant) -> None:
    """Do what follows in the same commit: release dependents, unpark jobs, record signals."""
    if not applied:
        return
    ended = [t.job_id for t in applied if t.target in TERMINAL]
    asked = ([t.job_id for t in applied], left_their_place(applied))
    awaited, encoded, rate_keys = await tx.row("keys_of", *asked) or (False, None, None)
    if not awaited:
        ended = []
    if ended or tx.broods:
        await release.spread(tx, ended, now)
    await _let_in(tx, msgspec.json.decode(encoded or "{}"), rate_keys or [], now)
    tx.signals |= signals_of(applied)


async def _let_in(tx: Tx, keys: dict[str, int], rate_keys: list[str], now: Instant) -> None:
    names = [*map(release.name_of, keys), *map(admission.name_of, rate_keys)]
    if names:
        await tx.rows("lock_names", names)
    for key, limit in keys.items():
        await release.unpark(tx, key, limit)
    await admission.left_sight(tx, rate_keys, now)


async def extend(tx: Tx, holds: Sequence[Hold], span: int, store_now: Instant | None) -> list[Verdict]:
    done = {row[0] for row in await tx.rows("extend", *_columns(holds), span, store_now)}
    verdicts = await _answer(tx, holds, done)
    return [
        # Skipped: the claim still holds but was not extended, and its holder must not be told that it was.
        Verdict.LOCKED if verdict is Verdict.APPLIED and hold.job_id not in done else verdict
        for hold, verdict in zip(holds, verdicts, strict=True)
    ]


async def note(tx: Tx, notes: Sequence[Note], store_now: Instant | None) -> list[Verdict]:
    fields = [[getattr(each, name) for each in notes] for name in _NOTED]
    rows = await tx.rows("note", *_columns([each.hold for each in notes]), *fields, store_now)
    return await _answer(tx, [each.hold for each in notes], {row[0] for row in rows})


_NOTED = ("progress", "stage", "logs", "log_location", "metrics", "artifacts")


def _columns(holds: Sequence[Hold]) -> list[list[Any]]:
    return [[hold.job_id for hold in holds], [hold.attempt for hold in holds], [hold.token for hold in holds]]


async def record_step(tx: Tx, hold: Hold, name: str, answer: str, store_now: Instant | None) -> Verdict:
    await tx.execute("record_step", hold.job_id, hold.attempt, hold.token, name, answer, store_now)
    return (await _answer(tx, [hold], set()))[0]


async def _answer(tx: Tx, holds: Sequence[Hold], done: set[str]) -> list[Verdict]:
    if len(done) == len(holds):
        return [Verdict.APPLIED] * len(holds)
    standing = await _standing(tx, [hold.job_id for hold in holds])
    return [held(hold, standing.get(hold.job_id)) for hold in holds]


_FIRST = "00000000-0000-0000-0000-000000000000"


async def insert_children(
    tx: Tx, hold: Hold, jobs: Sequence[NewJob], now: Instant, store_now: Instant | None, repeat: bool
) -> list[Inserted] | None:
    row = await tx.row("hold_claim", hold.job_id)  # locked: a rescue waits until these are stored, or is seen here
    if held(hold, None if row is None else tuple(row)) is not Verdict.APPLIED:
        return None
    return await insert.insert(tx, jobs, now, store_now, repeat)


async def stage(tx: Tx, hold: Hold, part: int, jobs: Sequence[NewJob]) -> Verdict:
    if await store_part(tx, hold, part, jobs):
        return Verdict.APPLIED
    found = await tx.row("standing", [hold.job_id])
    return held(hold, None if found is None else (found[1], found[2], found[3]))


def children_statement(get_statement: str) -> str:
    """Return the statement for the children of a job. Index: job_parent."""
    return get_statement.partition("WHERE ")[0] + (
        "WHERE parent_job_id = $1::uuid AND job_id > $2::uuid AND ($3::text IS NULL OR (status || '') = $3)"
        " ORDER BY job.job_id LIMIT $4"
    )


async def children(tx: Tx, job_id: str, after: str | None, limit: int, status: Status | None) -> Page:
    wanted = None if status is None else status.value
    found = await tx.connection.fetch(children_statement(tx.sql["get"]), job_id, after or _FIRST, wanted, limit + 1)
    items = await read.with_edges(tx, found[:limit])
    return Page(items, items[-1].job_id if len(found) > limit else None)

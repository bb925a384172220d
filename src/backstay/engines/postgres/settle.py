"""`apply` on PostgreSQL, and the other writes of a claim's holder: extend, note, steps, children, effects.

What a run stages means nothing until its settlement names it. Then the parent counts one more open child than it has
(the hold), so that it cannot proceed before all are stored, and a mark tells maintenance to continue: each part is
stored and removed in one transaction, and the last removes the hold and the mark.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

import asyncpg
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
from backstay.core.states import TERMINAL, Event, Status, also_counted, bucket_of, counted
from backstay.core.waits import EventWait, StepKind
from backstay.engines.places import LATEST_MAX, Move, Standing, decide, is_repeat, token_key
from backstay.engines.postgres import admission, insert, read, release, waits
from backstay.engines.postgres import places as postgres_places
from backstay.engines.postgres.connection import Tx, is_collision, is_outage, translate
from backstay.engines.postgres.insert import Terms
from backstay.engines.sql_rows import holds_by_key, left_their_place, signals_of
from backstay.errors import EffectFailed, InvalidResult, InvalidSubmission

_STALE_MAX = 100  # parts removed at once
_jobs = msgspec.msgpack.Decoder(list[NewJob])


async def store_part(tx: Tx, hold: Hold, part: int, jobs: Sequence[NewJob]) -> bool:
    """Store a part; return whether the claim holds."""
    packed = msgspec.msgpack.encode(list(jobs))
    return bool(await tx.execute("stage", hold.job_id, hold.attempt, token_key(hold.token), part, packed))


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
_REPORTED = operator.attrgetter("result_artifact", "logs", "log_location", "metrics", "artifacts")
_BETWEEN_RESULTS = "\x1f"  # which JSON text never contains


async def complete(tx: Tx, fast: Sequence[Transition], store_now: Instant | None) -> set[str]:
    """Complete jobs in one statement where possible; return their ids. None is named twice. Children are left to the
    other two functions."""
    return await _complete(tx, fast, store_now, counting=False)


async def complete_children(tx: Tx, fast: Sequence[Transition], store_now: Instant | None, at: Instant) -> set[str]:
    """The same for children, in a transaction that locks their parents first, because those count them."""
    parents = {t.job_id: t.parent_job_id for t in fast}
    await tx.rows("lock_parents", sorted({parent for parent in parents.values() if parent is not None}))
    done = await _complete(tx, fast, store_now, counting=True)
    for job_id in done:
        tx.broods.add(parents[job_id], _COMPLETED)
    await release.spread(tx, (), at)
    return done


async def _complete(tx: Tx, fast: Sequence[Transition], store_now: Instant | None, *, counting: bool) -> set[str]:
    [(count, some)] = await tx.rows("complete", *completion_columns(fast), store_now, counting, len(fast))
    if count:
        tx.signals.add(Signal.ENDED)
    return {t.job_id for t in fast} if count == len(fast) else set(some or ())


def completion_columns(fast: Sequence[Transition]) -> list[Any]:
    """Return the arguments of `complete`. What jobs of one claim have in common is sent once, with the number of its
    claim for each job. Columns that every job has are sent as text: the driver looks at each element of an array
    several times, and the server reads either as fast."""
    claims: dict[tuple[int, str | None, str | None, Kind], int] = {}
    numbers = [claims.setdefault((t.attempt, t.token, t.by, t.kind), len(claims) + 1) for t in fast]
    attempts, tokens, holders, kinds = zip(*claims, strict=True)
    results = _BETWEEN_RESULTS.join([t.result or "" for t in fast])
    if results.count(_BETWEEN_RESULTS) >= len(fast):
        raise InvalidResult("a result is not JSON: it contains the character U+001F")
    return [
        f"{{{','.join([t.job_id for t in fast])}}}",
        f"{{{','.join(map(str, numbers))}}}",
        f"{{{','.join([str(t.waited_micros) for t in fast])}}}",
        results,
        # NULL in place of an array of them
        *(column if any(column) else None for column in map(list, zip(*map(_REPORTED, fast), strict=True))),
        list(attempts),
        [token_key(token) for token in tokens],
        list(holders),
        *map(list, zip(*kinds, strict=True)),
    ]


async def apply_each(
    tx: Tx, transitions: Sequence[Transition], now: Instant, repeat: bool, client_now: Instant
) -> list[Verdict]:
    """Apply transitions in one transaction that locks all their jobs first. They are decided one by one, and written
    together."""
    again = [t.job_id for t in transitions if t.event is Event.MANUAL_RETRY]
    retries = Retries()
    if again:  # dedup keys before any row, in the same order as a submit
        keys = await tx.rows("dedup_keys_of", again)
        if keys:
            await tx.rows("lock_names", sorted({f"backstay dedup {key}" for _, key, *_ in keys}))
    ids = list(dict.fromkeys(t.job_id for t in transitions))
    rewaiting = [t.job_id for t in transitions if t.rewait]
    await tx.rows("lock_jobs", ids, rewaiting)
    # With the places of those that they may wait for again: a fast completion does not look at locks in `job`.
    upstream = await tx.column("parents_of", rewaiting) if rewaiting else []
    jobs = await postgres_places.locked(tx, ids, upstream)
    if again:
        retries = await _read_retries(tx, again)
    verdicts: list[Verdict] = []
    done: list[tuple[Transition, Move]] = []
    refused: list[int] = []
    for number, t in enumerate(transitions):
        found = _decide(t, jobs, retries, now)
        if isinstance(found, Move):
            jobs[t.job_id] = found.after
            done.append((t, found))
            verdicts.append(Verdict.APPLIED)
        else:
            verdicts.append(found)
            if found is Verdict.STALE:
                refused.append(number)
    await postgres_places.write(tx, [move for _, move in done])
    if refused:
        latest = await _latest(tx, [transitions[number].job_id for number in refused])
        for number in refused:
            t = transitions[number]
            if is_repeat(t, jobs[t.job_id], latest.get(t.job_id, ())) or (repeat and await _on_record(tx, t)):
                verdicts[number] = Verdict.APPLIED
    for t, move in done:
        await _beside(tx, t, move, retries, now, client_now)
    await _after(tx, done, now)
    return verdicts


class Retries(msgspec.Struct):
    """What manual retries of one call depend on."""

    outcomes: dict[str, dict[str, Status]] = {}  # of each job, how those stand that it depends on
    keys: dict[str, str] = {}  # dedup keys by job
    guards: dict[str, tuple[str, Instant | None, Status | None]] = {}  # by key: the job it stands for, until when


async def _read_retries(tx: Tx, job_ids: list[str]) -> Retries:
    found = Retries(outcomes={}, keys={}, guards={})
    for child, parent, status in await tx.rows("outcomes_of", job_ids):
        found.outcomes.setdefault(child, {})[parent] = Status(status)
    for job_id, key, target, until, status in await tx.rows("dedup_keys_of", job_ids):
        found.keys[job_id] = key
        if target is not None:
            found.guards[key] = (target, until, None if status is None else Status(status))
    return found


def _decide(t: Transition, jobs: dict[str, Standing], retries: Retries, now: Instant) -> Verdict | Move:
    job = jobs.get(t.job_id)
    unmet = 0
    if t.event is Event.MANUAL_RETRY and job is not None and job.status is t.source:
        # What earlier transitions of this call have changed counts.
        outcomes = Counter(
            jobs[parent].status if parent in jobs else status
            for parent, status in retries.outcomes.get(t.job_id, {}).items()
        )
        stands = again(rule=TriggerRule(job.trigger_rule), outcomes=outcomes)
        if stands.blocked or (stands.unmet and not t.rewait):
            return Verdict.BLOCKED
        if (target := _living_target(t.job_id, jobs, retries, now)) is not None and target != t.job_id:
            return Verdict.TAKEN
        unmet = stands.unmet
    return decide(job, t, now, unmet=unmet)


def _living_target(job_id: str, jobs: dict[str, Standing], retries: Retries, now: Instant) -> str | None:
    """Return the job for which the dedup key of a job stands, if it is in force."""
    key = retries.keys.get(job_id)
    if key is None or key not in retries.guards:
        return None
    target, until, status = retries.guards[key]
    if target in jobs:
        status = jobs[target].status
    if status is None:
        return None
    in_force = status not in TERMINAL if until is None else now < until
    return target if in_force else None


async def _beside(tx: Tx, t: Transition, move: Move, retries: Retries, now: Instant, client_now: Instant) -> None:
    """Do what a transition brings besides its move, which has been written."""
    before, after = move.before, move.after
    if (outcome := counted(t.event, after.status)) is not None:
        bucket = bucket_of(outcome, t.source, t.ran_micros, t.waited_micros)
        tx.count(t.kind, outcome, now, 1, t.ran_micros, t.waited_micros, bucket)
    if (beside := also_counted(t.event)) is not None:
        tx.count(t.kind, beside, now)
    if (before.status in TERMINAL) != (after.status in TERMINAL):
        tx.broods.add(after.parent_job_id, moved(before.status, after.status))
    if t.event is Event.MANUAL_RETRY:
        key = retries.keys.get(t.job_id)
        if key is not None:
            # For as long as before, and at least while it is active.
            target, until, status = retries.guards.get(key, (None, None, None))
            in_force = target is not None and until is not None and now < until and status is not None
            if not in_force:
                await tx.execute("save_guard", key, t.job_id)
                retries.guards[key] = (t.job_id, None, after.status)
        if t.forget_steps:
            await tx.execute("forget_steps", t.job_id, StepKind.OWN.value)
        if after.status is Status.WAITING:
            await _wait_again(tx, t.job_id)
    if t.effects:
        await _run_effects(tx, t)
    if t.children or t.staged is not None:
        await bring(tx, t, client_now, now)
    if isinstance(t.awaits, EventWait):
        await waits.resume_if_sent(tx, after, t.seen, now)
    elif t.awaits is not None:
        tx.broods.add(t.job_id, Brood())  # checked with the others: perhaps none is open


async def _wait_again(tx: Tx, job_id: str) -> None:
    if parents := await tx.column("unmeet", [job_id]):
        await tx.value("lock_places", parents)
        await tx.value("mark_awaited", parents)


async def _run_effects(tx: Tx, t: Transition) -> None:
    tx.unclean = True
    await tx.connection.execute("SET LOCAL enable_seqscan = on")  # off is for our own tables
    for statement, values in t.effects:
        try:
            # Always as a prepared statement, which is one command: no COMMIT can hide behind a semicolon.
            await tx.connection.fetch(statement, *values)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, ValueError, TypeError) as error:
            if is_collision(error) or (is_outage(error) and tx.connection.is_closed()):
                raise
            said = " ".join(str(error).split())  # with the server's hints, the message has several lines
            raise EffectFailed(f"{type(error).__name__}: {said} in {statement[:200]!r}", job_id=t.job_id) from None


async def _latest(tx: Tx, job_ids: Sequence[str]) -> dict[str, list[tuple[str, int, int | None]]]:
    latest: dict[str, list[tuple[str, int, int | None]]] = {}
    for job_id, event, attempt, token in await tx.rows("latest_of", list(set(job_ids)), LATEST_MAX):
        latest.setdefault(job_id, []).append((event, attempt, token))
    return latest


async def _on_record(tx: Tx, t: Transition) -> bool:
    """Return whether an earlier try was applied, although the job has changed since: then history has it."""
    targets = [Status.PENDING.value, Status.WAITING.value] if t.rewait else [t.target.value]
    version = None if t.version is None else t.version + 1
    details = None if t.details is None else msgspec.json.encode(t.details).decode()
    asked = (t.job_id, t.event.value, t.source.value, targets, t.attempt, t.by, version, details)
    return bool(await tx.value("on_record", *asked))


async def _after(tx: Tx, done: Sequence[tuple[Transition, Move]], now: Instant) -> None:
    """Do what follows in the same commit: release dependents, unpark jobs, record signals."""
    if not done:
        return
    ended = [move.after.job_id for _, move in done if move.after.awaited and move.after.status in TERMINAL]
    if ended or tx.broods:
        await release.spread(tx, ended, now)
    limits: dict[str, int] = {}
    rate_keys: set[str] = set()
    for t, move in done:
        job = move.after
        if job.concurrency_key is not None and job.concurrency_limit is not None:
            limits[job.concurrency_key] = max(limits.get(job.concurrency_key, 0), job.concurrency_limit)
        if job.rate_key is not None and left_their_place([t]):
            rate_keys.add(job.rate_key)
    names = [*map(release.name_of, limits), *map(admission.name_of, rate_keys)]
    if names:
        await tx.rows("lock_names", names)
    for key, limit in limits.items():
        await release.unpark(tx, key, limit)
    await admission.left_sight(tx, rate_keys, now, gone=True)
    tx.signals |= signals_of([t for t, _ in done])


async def extend(tx: Tx, holds: Sequence[Hold], span: int, store_now: Instant | None) -> list[Verdict]:
    done = set(await tx.column("extend", *_columns(holds), span, store_now))
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
    return [
        [hold.job_id for hold in holds],
        [hold.attempt for hold in holds],
        [token_key(hold.token) for hold in holds],
    ]


async def record_step(tx: Tx, hold: Hold, name: str, answer: str, store_now: Instant | None, kind: StepKind) -> Verdict:
    key = token_key(hold.token)
    await tx.execute("record_step", hold.job_id, hold.attempt, key, name, answer, store_now, kind.value)
    return (await holding(tx, [hold]))[0]


async def append_output(tx: Tx, parts: Sequence[OutputPart], store_now: Instant | None) -> list[Verdict]:
    holds = [part.hold for part in parts]
    fields = [[getattr(part, name) for part in parts] for name in ("take", "first", "last", "size", "text")]
    for job_id, attempt, take, first in await tx.rows("append_output", *_columns(holds), *fields, store_now):
        tx.signals.add(Signal.OUTPUT)
        if first == 1:
            await tx.execute("replace_output", job_id, attempt, take)
    return await holding(tx, holds)


async def _answer(tx: Tx, holds: Sequence[Hold], done: set[str]) -> list[Verdict]:
    return [Verdict.APPLIED] * len(holds) if len(done) == len(holds) else await holding(tx, holds)


async def holding(tx: Tx, holds: Sequence[Hold]) -> list[Verdict]:
    """Return which of these claims are still valid."""
    rows = await tx.rows("claims", [hold.job_id for hold in holds])
    found = {job_id: (attempt, token) for job_id, attempt, token in rows}
    return [holds_by_key(hold, found.get(hold.job_id)) for hold in holds]


_FIRST = "00000000-0000-0000-0000-000000000000"


async def insert_children(
    tx: Tx, hold: Hold, jobs: Sequence[NewJob], now: Instant, store_now: Instant | None, repeat: bool
) -> list[Inserted] | None:
    row = await tx.row("hold_claim", hold.job_id)  # locked: a rescue waits until these are stored, or is seen here
    if row is None or holds_by_key(hold, tuple(row)) is not Verdict.APPLIED:
        return None
    return await insert.insert(tx, jobs, now, store_now, repeat)


async def _hold(tx: Tx, hold: Hold) -> Verdict:
    """Return whether a claim holds, and keep it so until the end of the transaction."""
    await tx.row("hold_claim", hold.job_id)
    return (await holding(tx, [hold]))[0]


async def listen_for(tx: Tx, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
    await tx.rows("lock_names", [waits.name_of(wait.key or "")])
    await tx.rows("lock_jobs", [hold.job_id], [])
    return await waits.listen_for(tx, hold, wait, now, await _hold(tx, hold))


async def stop_listening(tx: Tx, hold: Hold, wait: EventWait, now: Instant) -> Verdict:
    await tx.rows("lock_names", [waits.name_of(wait.key or "")])
    return await waits.stop_listening(tx, hold, wait, now, await _hold(tx, hold))


async def stage(tx: Tx, hold: Hold, part: int, jobs: Sequence[NewJob]) -> Verdict:
    if await store_part(tx, hold, part, jobs):
        return Verdict.APPLIED
    return (await holding(tx, [hold]))[0]


async def children(tx: Tx, job_id: str, after: str | None, limit: int, status: Status | None) -> Page:
    wanted = None if status is None else status.value
    found = await tx.rows("children", job_id, after or _FIRST, wanted, limit + 1)
    items = await read.with_edges(tx, found[:limit])
    return Page(items, items[-1].job_id if len(found) > limit else None)

"""`insert` on SQLite: plain jobs in one executemany, special ones one by one; deduplication and reuse.

Also submitting inside a transaction of the caller's own, on an apsw connection to the same file.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from backstay.clock import Instant
from backstay.core.dependencies import TriggerRule, began, breaker, moved
from backstay.core.records import FOREVER, ROW_FIELDS, Inserted, JobRecord, Kind, NewJob, Signal
from backstay.core.states import TERMINAL, Counted, Event, Status
from backstay.engines import sql_rows
from backstay.engines.sqlite import admission, read, release
from backstay.engines.sqlite.connection import load, translate
from backstay.engines.sqlite.writer import Tx
from backstay.errors import DedupConflict, InvalidOption, UnknownDependency


def living_target(tx: Tx, key: str, now: Instant) -> JobRecord | None:
    """Return the job that a dedup key belongs to; None if the guard has ended or its job no longer exists."""
    row = tx.row("SELECT job_id, until FROM dedup WHERE dedup_key = ?", (key,))
    if row is None:
        return None
    job_id, until = row
    target = read.get(tx.connection, [job_id])[0]
    if target is None:
        return None
    in_force = target.status not in TERMINAL if until is None else now < until
    return target if in_force else None


def guard(tx: Tx, key: str, job_id: str, until: Instant | None) -> None:
    """Let a dedup key belong to this job; `until` None means as long as the job is active."""
    tx.connection.execute(
        "INSERT OR REPLACE INTO dedup (dedup_key, job_id, until) VALUES (?, ?, ?)",
        (key, job_id, None if until is None else min(until, FOREVER)),
    )


def may_guard_again(tx: Tx, job_id: str, now: Instant) -> bool:
    """Return whether an ended job that is to run again can have its dedup key back: not if the key belongs to another
    job by now."""
    key = tx.value("SELECT dedup_key FROM job WHERE job_id = ?", (job_id,))
    target = None if key is None else living_target(tx, key, now)
    return target is None or target.job_id == job_id


def guard_again(tx: Tx, job_id: str, now: Instant) -> None:
    """Give a job that runs again its dedup key back, for as long as before and at least while it is active."""
    key = tx.value("SELECT dedup_key FROM job WHERE job_id = ?", (job_id,))
    if key is not None and living_target(tx, key, now) is None:
        guard(tx, key, job_id, None)


INSERT = load("insert")
EXTRAS = load("insert_extras")
REUSED = load("insert_reused")
REUSABLE = load("reusable")
JOINABLE = load("joinable")
AWAITED = load("awaited")
ROOT = "SELECT coalesce(root_job_id, job_id) FROM job WHERE job_id = ?"
_ROW_SIZE = len(ROW_FIELDS)

_astuple = msgspec.structs.astuple


class Donor(NamedTuple):
    job_id: str
    ran: str  # another job if this one itself reused a result
    took_micros: int


def insert_plain(tx: Tx, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
    """Insert jobs that are rows and nothing more."""
    if limited := tx.rows(admission.LIMITED):
        admission.refuse_over_limit(tx, limited, jobs, now)
    bindings = []
    answers = []
    events: dict[tuple[Status, str | None], str] = {}
    kinds: dict[Kind, int] = {}
    for job in jobs:
        status = Status.SCHEDULED if job.scheduled_for > now else Status.PENDING
        key = (status, job.created_by)
        event = events.get(key)
        if event is None:
            event = events[key] = sql_rows.submit_event(now, Event.SUBMIT, status, job.created_by)
            tx.signals.add(Signal.DUE if status is Status.SCHEDULED else Signal.READY)
        bindings.append((status.value, now, event, *_astuple(job)[:_ROW_SIZE]))
        answers.append(Inserted(job.job_id, status))
        kind = (job.job_type, job.queue, job.priority)
        kinds[kind] = kinds.get(kind, 0) + 1
    tx.connection.executemany(INSERT, bindings)
    for kind, count in kinds.items():
        tx.count(kind, Counted.SUBMITTED, now, count)
    return answers


def insert(
    tx: Tx, jobs: Sequence[NewJob], now: Instant, *, admitted: bool = False, promised: bool = False
) -> list[Inserted]:
    """Insert jobs. `admitted`: children of an admitted parent, which no queue limit applies to. `promised`: their
    parent has already been settled with them, so none can be refused."""
    if not any(job.special for job in jobs):
        return insert_plain(tx, jobs, now)
    answers = [
        _insert_special(tx, job, now, admitted, promised) if job.special else insert_plain(tx, [job], now)[0]
        for job in jobs
    ]
    if tx.broods:
        release.spread(tx, (), now)
    return answers


def _insert_special(tx: Tx, job: NewJob, now: Instant, admitted: bool, promised: bool) -> Inserted:
    existing = _by_own_id(tx, job) or _by_dedup_key(tx, job, now)
    if existing is not None:
        return existing
    job = _with_root(tx, job)
    rule = TriggerRule(job.trigger_rule)
    donor, leader = _identical(tx, job)
    if leader in job.depends_on or (job.depends_on and rule is not TriggerRule.ALL_SUCCESS):
        leader = None  # it depends on that job anyway, or may start before it: no join
    if donor is not None:
        return _insert_reused(tx, job, donor, now, promised)
    standing = _standing(tx, job.depends_on, promised)
    if leader is not None:
        standing[leader] = Status.WAITING
    start = began(
        rule=rule,
        outcomes=Counter(standing.values()),
        on_failure=job.on_dependency_failure,
        scheduled_for=job.scheduled_for,
        now=now,
    )
    if start.status is Status.PENDING and not admitted and (limited := tx.rows(admission.LIMITED)):
        admission.refuse_over_limit(tx, limited, [job], now)
    _write(tx, job, start.status, now, Event.SUBMIT)
    tx.broods.add(job.parent_job_id, moved(None, start.status))
    parked = start.status is Status.PENDING and not _has_room(tx, job)
    rate_parked = start.status is Status.PENDING and not parked and admission.has_to_wait(tx, job, now)
    _write_extras(
        tx,
        job,
        unmet=start.unmet,
        parked=int(parked or rate_parked),
        rate_parked=int(rate_parked),
        joins=leader,
    )
    _write_edges(tx, job.job_id, standing, leader)
    if start.then is not None:
        culprit = breaker(rule, standing)
        reason = f"{culprit} {standing[culprit].value}"
        kind = (job.job_type, job.queue, job.priority)
        release.end_as_it_comes(tx, job.job_id, start.then, reason, job.parent_job_id, kind, now)
    elif start.status is not Status.WAITING:
        tx.signals.add(Signal.DUE if start.status is Status.SCHEDULED else Signal.READY)
    return Inserted(job.job_id, start.then or start.status)


def _write(tx: Tx, job: NewJob, status: Status, now: Instant, event: Event) -> None:
    history = sql_rows.submit_event(now, event, Status.COMPLETED if event is Event.REUSE else status, job.created_by)
    tx.connection.execute(INSERT, (status.value, now, history, *_astuple(job)[:_ROW_SIZE]))
    kind = (job.job_type, job.queue, job.priority)
    tx.count(kind, Counted.SUBMITTED, now)
    if event is Event.REUSE:
        tx.count(kind, Counted.COMPLETED, now)


def _write_extras(tx: Tx, job: NewJob, **standing: int | str | None) -> None:
    """Write what a special job has in addition to its row: more fields, and the guard of its dedup key."""
    extras = {
        "job_id": job.job_id,
        "dedup_key": job.dedup_key,
        "trigger_rule": None if job.trigger_rule == TriggerRule.ALL_SUCCESS else job.trigger_rule,
        "rate_key": job.rate_key,
        "rate_count": None if job.rate is None else job.rate.count,
        "rate_micros": None if job.rate is None else job.rate.micros,
        "schedule": job.schedule,
        "tick_at": job.tick_at,
    }
    tx.connection.execute(EXTRAS, {"unmet": 0, "parked": 0, "rate_parked": 0, "joins": None, **extras, **standing})
    if job.dedup_key is not None:
        guard(tx, job.dedup_key, job.job_id, job.dedup_until)


def _write_edges(tx: Tx, job_id: str, standing: Mapping[str, Status], leader: str | None) -> None:
    tx.connection.executemany(
        "INSERT INTO edge (parent_id, child_id, met, joined) VALUES (?, ?, ?, ?)",
        [(parent, job_id, int(status in TERMINAL), int(parent == leader)) for parent, status in standing.items()],
    )
    if unmet := [parent for parent, status in standing.items() if status not in TERMINAL]:
        tx.connection.execute(AWAITED, (msgspec.json.encode(unmet).decode(),))


def _with_root(tx: Tx, job: NewJob) -> NewJob:
    if job.parent_job_id is None:
        return job
    row = tx.row(ROOT, (job.parent_job_id,))
    if row is None:
        raise UnknownDependency(
            f"no job {job.parent_job_id} to be the parent, or it was archived: submit it first; nothing was stored"
        )
    return msgspec.structs.replace(job, root_job_id=row[0])


def _by_own_id(tx: Tx, job: NewJob) -> Inserted | None:
    if not job.own_id:
        return None
    record = read.get(tx.connection, [job.job_id])[0]
    return None if record is None else Inserted(job.job_id, record.status, existing=record)


def _by_dedup_key(tx: Tx, job: NewJob, now: Instant) -> Inserted | None:
    target = None if job.dedup_key is None else living_target(tx, job.dedup_key, now)
    if target is None:
        return None
    # The archive has no payload to compare: the repeat is accepted.
    if job.dedup_conflict_is_error and target.archived_at is None and target.payload != job.payload:
        raise DedupConflict(f"dedup key {job.dedup_key!r} belongs to job {target.job_id}, whose payload is different")
    return Inserted(target.job_id, target.status, existing=target)


def _identical(tx: Tx, job: NewJob) -> tuple[Donor | None, str | None]:
    """Return an identical job: a completed one whose result can be reused, or an active one to join."""
    if job.reuse_since is None:
        return None, None
    bindings: dict[str, Any] = {
        "content_hash": job.content_hash,
        "job_type": job.job_type,
        "since": job.reuse_since,
    }
    donor = tx.row(REUSABLE, bindings)
    if donor is not None:
        return Donor(*donor), None
    del bindings["since"]
    leader = tx.row(JOINABLE, bindings)
    return None, leader[0] if leader else None


def _insert_reused(tx: Tx, job: NewJob, donor: Donor, now: Instant, promised: bool) -> Inserted:
    _write(tx, job, Status.PENDING, now, Event.REUSE)
    tx.count((job.job_type, job.queue, job.priority), Counted.REUSED, now, 1, donor.took_micros)
    tx.broods.add(job.parent_job_id, moved(None, Status.COMPLETED))
    _write_extras(tx, job)
    tx.connection.execute(REUSED, {"job_id": job.job_id, "donor": donor.job_id, "ran": donor.ran, "now": now})
    # It waits for no other job. If it is retried manually, it runs by itself.
    _write_edges(tx, job.job_id, _standing(tx, job.depends_on, promised), None)
    tx.signals.add(Signal.ENDED)
    return Inserted(job.job_id, Status.COMPLETED, reused_from=donor.ran)


def _standing(tx: Tx, depends_on: Sequence[str], promised: bool) -> dict[str, Status]:
    """Return the status of each dependency of a job. One that retention has deleted since the job was promised had
    completed then."""
    standing = {}
    for parent in depends_on:
        found = tx.value(release.STATUS, (parent,))
        if found is None and not promised:
            raise UnknownDependency(f"no job {parent} to depend on: submit it first; nothing was stored")
        standing[parent] = Status(found or Status.COMPLETED)
    return standing


def _has_room(tx: Tx, job: NewJob) -> bool:
    if job.concurrency_key is None or job.concurrency_limit is None:
        return True
    room = job.concurrency_limit - release.running(tx, job.concurrency_key)
    if room <= 0:
        return False
    lane = (job.queue, job.job_type, job.payload_version)
    # The job itself is already claimable. Jobs that come later do not block it: they are parked when it is claimed.
    place = (job.priority, job.scheduled_for, job.job_id)
    in_sight: int = tx.value(release.KEY_IN_SIGHT, (job.concurrency_key, *lane, *place, room + 1))
    return in_sight <= room


LOOK_SECONDS = 0.005  # how often to check whether the caller has committed: SQLite does not notify


def insert_as_guest(
    connection: object, path: Path, jobs: Sequence[NewJob], now: Instant, committed: Callable[[set[Signal]], None]
) -> list[Inserted]:
    """Insert in the caller's thread, the only one that may use the connection."""
    opened = _checked(connection, path)
    tx = Tx(opened)
    try:
        with opened:  # a savepoint: a refusal leaves the rest of the caller's transaction unchanged
            answers = insert(tx, jobs, now)
            tx.write_counters()
    except apsw.Error as error:
        raise translate(error, str(path)) from None
    _tell_after_commit(opened, tx.signals, committed)
    return answers


def _checked(connection: object, path: Path) -> apsw.Connection:
    if type(connection).__module__ == "sqlite3":
        raise InvalidOption(
            "connection= is a sqlite3.Connection: two copies of SQLite in one process on one file drop each other's"
            " locks, and jobs would be lost; open the file with apsw.Connection instead"
        )
    if not isinstance(connection, apsw.Connection):
        raise InvalidOption(f"connection={type(connection)!r}: give an apsw.Connection to {path}")
    if not connection.in_transaction:
        raise InvalidOption(
            "connection= has no transaction: begin one (BEGIN IMMEDIATE), or submit without connection="
        )
    if not os.path.exists(connection.filename) or not os.path.samefile(connection.filename, path):
        raise InvalidOption(f"connection= is open on {connection.filename}, but the jobs are in {path}")
    return connection


def _tell_after_commit(
    connection: apsw.Connection, signals: set[Signal], committed: Callable[[set[Signal]], None]
) -> None:
    """Signal once the caller has committed. Signals are hints: after a rollback, a worker polls in vain."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        try:
            busy = connection.in_transaction
        except apsw.Error:  # closed
            busy = False
        if busy:
            loop.call_later(LOOK_SECONDS, look)
        else:
            committed(signals)

    loop.call_later(LOOK_SECONDS, look)

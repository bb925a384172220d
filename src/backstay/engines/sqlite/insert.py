"""`insert` on SQLite: plain jobs in one executemany, special ones one by one; deduplication and reuse.

Also submitting inside a transaction of the caller's own, on an apsw connection to the same file.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from backstay.clock import Instant
from backstay.core import dedup, job_fields, lifecycle
from backstay.core.dependencies import TriggerRule, began, breaker, moved
from backstay.core.event_details import Dependency
from backstay.core.records import FOREVER, NEW_DEFAULTS, Inserted, JobRecord, Kind, NewJob, Signal
from backstay.core.states import TERMINAL, Counted, Event, Status
from backstay.engines.places import FACTS, STANDING, TALLIED, Move, Standing, decide, submitted
from backstay.engines.release import Gift
from backstay.engines.sqlite import admission, read, release
from backstay.engines.sqlite import places as sqlite_places
from backstay.engines.sqlite.connection import ID_LENGTH, RARELY_SET, SHARED, USUALLY_SET, load, translate
from backstay.engines.sqlite.writer import Tx
from backstay.errors import DedupConflict, InvalidOption, StoreError, UnknownDependency

DEDUP_TARGET = load("dedup_target")
SAVE_DEDUP = load("save_dedup")
DEDUP_KEY_OF = load("dedup_key_of")


def living_target(tx: Tx, key: str, now: Instant) -> JobRecord | None:
    """Return the job that a dedup key belongs to; None if the guard has ended or its job no longer exists."""
    row = tx.row(DEDUP_TARGET, (key,))
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
    tx.connection.execute(SAVE_DEDUP, (key, job_id, None if until is None else min(until, FOREVER)))


def may_guard_again(tx: Tx, job_id: str, now: Instant) -> bool:
    """Return whether an ended job that is to run again can have its dedup key back: not if the key belongs to another
    job by now."""
    key = tx.value(DEDUP_KEY_OF, (job_id,))
    target = None if key is None else living_target(tx, key, now)
    return target is None or target.job_id == job_id


def guard_again(tx: Tx, job_id: str, now: Instant) -> None:
    """Give a job that runs again its dedup key back, for as long as before and at least while it is active."""
    key = tx.value(DEDUP_KEY_OF, (job_id,))
    if key is not None and living_target(tx, key, now) is None:
        guard(tx, key, job_id, None)


INSERT = load("insert")
INSERT_USUAL = load("insert_usual")
INSERT_ALIKE = load("insert_alike")
INSERT_READY = load("insert_ready")
INSERT_LATER = load("insert_later")
SPECIAL = load("insert_special")
REUSABLE = load("reusable")
JOINABLE = load("joinable")
SEQ_OF = load("seq_of")
ROOT = load("root_of")
INSERT_JOIN = load("insert_join")
INSERT_EDGE = load("insert_edge")
_SHARED = [name for name in FACTS if name in STANDING]
_row = attrgetter(*job_fields.PLAIN_FIELDS)
_usual_row = attrgetter(*USUALLY_SET)
_rare = attrgetter(*RARELY_SET)
_shared = attrgetter(*SHARED)
_NOTHING_RARE = tuple(NEW_DEFAULTS[name] for name in RARELY_SET)
_kind: Callable[[NewJob], Kind] = attrgetter("job_type", "queue", "priority")


CAN_BIND_LISTS = "ENABLE_CARRAY" in apsw.compile_options  # as in the wheels of apsw
ALIKE_MIN = 8  # jobs to a statement, on average: for fewer, one statement for each job is as fast


class Donor(NamedTuple):
    job_id: str
    ran: str  # another job if this one itself reused a result
    took_micros: int


def insert_plain(tx: Tx, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
    """Insert jobs that are rows and nothing more."""
    if len(jobs) == 1:
        return [_insert_alone(tx, jobs[0], now)]
    if limited := tx.arrivals.limited():
        admission.refuse_over_limit(tx, limited, jobs, now)
    first = tx.arrivals.take_seqs(len(jobs))
    _insert_facts(tx, jobs, first, now)
    due = {job.scheduled_for for job in jobs}
    if min(due, default=FOREVER) <= now:
        tx.connection.execute(INSERT_READY, (first, now))
        tx.signals.add(Signal.READY)
    if max(due, default=0) > now:
        tx.connection.execute(INSERT_LATER, (first, now))
        tx.signals.add(Signal.DUE)
        for kind, count in Counter(_kind(job) for job in jobs if job.scheduled_for > now).items():
            tx.tally(kind, Status.SCHEDULED.value, count)
    for kind, count in Counter(map(_kind, jobs)).items():
        tx.arrivals.submitted(kind, now, count)
    pending, scheduled = Status.PENDING, Status.SCHEDULED
    return [Inserted(job.job_id, pending if job.scheduled_for <= now else scheduled) for job in jobs]


def _insert_facts(tx: Tx, jobs: Sequence[NewJob], first: int, now: Instant) -> None:
    """Write what was submitted. Jobs that differ only in their ids and payloads take one statement with a list, in half
    the time of a statement for each, and without the interpreter's lock."""
    if CAN_BIND_LISTS:
        alike = [(shared, len(list(those))) for shared, those in groupby(map(_shared, jobs))]
        if len(alike) * ALIKE_MIN <= len(jobs) and all(len(job.job_id) == ID_LENGTH for job in jobs):
            texts = tuple([job.job_id + job.payload for job in jobs])
            begin = 0
            for shared, count in alike:
                listed = apsw.carray(texts, start=begin, stop=begin + count)
                tx.connection.execute(INSERT_ALIKE, (first + begin, now, listed, *shared))
                begin += count
            return
    is_usual = all(map(_NOTHING_RARE.__eq__, map(_rare, jobs)))
    statement, row = (INSERT_USUAL, _usual_row) if is_usual else (INSERT, _row)
    tx.connection.executemany(statement, [(seq, now, *row(job)) for seq, job in enumerate(jobs, start=first)])


def _insert_alone(tx: Tx, job: NewJob, now: Instant) -> Inserted:
    """Insert a job that comes on its own: for one, sets cost more than they save."""
    arrivals = tx.arrivals
    if limited := arrivals.limited():
        admission.refuse_over_limit(tx, limited, [job], now)
    seq = arrivals.take_seqs(1)
    if _rare(job) == _NOTHING_RARE:
        tx.connection.execute(INSERT_USUAL, (seq, now, *_usual_row(job)))
    else:
        tx.connection.execute(INSERT, (seq, now, *_row(job)))
    arrivals.submitted(_kind(job), now)
    if job.scheduled_for > now:
        tx.connection.execute(INSERT_LATER, (seq, now))
        tx.tally(_kind(job), Status.SCHEDULED.value, 1)
        tx.signals.add(Signal.DUE)
        return Inserted(job.job_id, Status.SCHEDULED)
    tx.connection.execute(INSERT_READY, (seq, now))
    tx.signals.add(Signal.READY)
    return Inserted(job.job_id, Status.PENDING)


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
    # Children of a settlement are counted with all of it: a parent that waits is not looked at before its own are in.
    if tx.broods and not admitted:
        release.spread(tx, (), now)
    return answers


def _insert_special(tx: Tx, job: NewJob, now: Instant, admitted: bool, promised: bool) -> Inserted:
    existing = _by_own_id(tx, job) or _by_dedup_key(tx, job, now, promised=promised)
    if existing is not None:
        return existing
    job = _with_root(tx, job)
    rule = TriggerRule(job.trigger_rule)
    donor, leader = _identical(tx, job)
    if leader in job.depends_on or (job.depends_on and rule is not TriggerRule.ALL_SUCCESS):
        leader = None  # it depends on that job anyway, or may start before it: no join
    if donor is not None:
        return _insert_reused(tx, job, donor, now, promised)
    needs = _needs(tx, job.depends_on, promised)
    if leader is not None:
        needs[leader] = Need(Status.WAITING, tx.value(SEQ_OF, (leader,)))
    outcomes = {parent: need.status for parent, need in needs.items()}
    start = began(
        rule=rule,
        outcomes=Counter(outcomes.values()),
        on_failure=job.on_dependency_failure,
        scheduled_for=job.scheduled_for,
        now=now,
    )
    if start.status is Status.PENDING and not admitted and (limited := tx.arrivals.limited()):
        admission.refuse_over_limit(tx, limited, [job], now)
    tx.broods.add(job.parent_job_id, moved(None, start.status))
    parked = 0
    if start.status is Status.PENDING:
        parked = 1 if not _has_room(tx, job) else 2 if admission.has_to_wait(tx, job, now) else 0
    new = _write(tx, job, now, start.status, parked=parked, unmet=start.unmet, joins=leader, expires_at=job.expires_at)
    _write_edges(tx, job.job_id, needs, leader)
    if start.then is not None:
        culprit = breaker(rule, outcomes)
        release.end_as_it_comes(tx, new, start.then, Dependency(culprit, outcomes[culprit]), now)
    elif start.status is not Status.WAITING:
        tx.signals.add(Signal.DUE if start.status is Status.SCHEDULED else Signal.READY)
    return Inserted(job.job_id, start.then or start.status)


def _write(tx: Tx, job: NewJob, now: Instant, status: Status, **standing: Any) -> Standing:
    """Write a special job: what was submitted, the place where it begins, the guard of its dedup key."""
    new = _stored(tx, job, now, status, **standing)
    sqlite_places.enter(tx, new.place, Move(new, new, ()).place_row())
    if status in TALLIED:
        tx.tally(new.kind, status.value, 1)
    if status is Status.WAITING:
        sqlite_places.write_events(tx, new.key, [submitted(now, job.created_by, status)])
    if new.joins is not None:
        tx.connection.execute(INSERT_JOIN, (new.key, new.joins))
    return new


def _stored(tx: Tx, job: NewJob, now: Instant, status: Status, **standing: Any) -> Standing:
    """Write what was submitted."""
    facts: dict[str, Any] = {name: getattr(job, name, None) for name in FACTS}
    if job.rate is not None:
        facts |= {"rate_count": job.rate.count, "rate_micros": job.rate.micros}
    new = Standing(
        key=tx.arrivals.take_seqs(1),
        status=status,
        **{name: facts[name] for name in _SHARED},
        stored=1 if status in (Status.WAITING, Status.COMPLETED) else 0,
        **standing,
    )
    for name, usual in job_fields.USUAL.items():
        if facts[name] == usual:
            facts[name] = None
    tx.connection.execute(SPECIAL, facts | {"seq": new.key, "created_at": now})
    if job.dedup_key is not None:
        guard(tx, job.dedup_key, job.job_id, job.dedup_until)
    tx.arrivals.submitted((job.job_type, job.queue, job.priority), now)
    return new


class Need(NamedTuple):
    """How a job stands that another depends on; `seq` where it still has to be told that it is awaited."""

    status: Status
    seq: int | None


def _write_edges(tx: Tx, job_id: str, needs: Mapping[str, Need], leader: str | None) -> None:
    tx.connection.executemany(
        INSERT_EDGE,
        [(parent, job_id, int(need.status in TERMINAL), int(parent == leader)) for parent, need in needs.items()],
    )
    if awaited := [need.seq for need in needs.values() if need.seq is not None and need.status not in TERMINAL]:
        sqlite_places.set_awaited(tx, awaited)


def _with_root(tx: Tx, job: NewJob) -> NewJob:
    if job.parent_job_id is None:
        return job
    root: str | None = tx.value(ROOT, (job.parent_job_id,))
    if root is None:
        raise UnknownDependency(
            f"no job {job.parent_job_id} to be the parent, or it was archived: submit it first; nothing was stored"
        )
    return msgspec.structs.replace(job, root_job_id=root)


def _by_own_id(tx: Tx, job: NewJob) -> Inserted | None:
    if not job.own_id:
        return None
    record = read.get(tx.connection, [job.job_id])[0]
    return None if record is None else Inserted(job.job_id, record.status, existing=record)


def _by_dedup_key(tx: Tx, job: NewJob, now: Instant, *, promised: bool) -> Inserted | None:
    target = None if job.dedup_key is None else living_target(tx, job.dedup_key, now)
    if target is None:
        return None
    if job.dedup_replaces and target.status not in TERMINAL:
        return _replace(tx, job, target, now)
    # The archive has no payload to compare: the repeat is accepted. A job that was promised is never refused.
    if job.dedup_conflict_is_error and not promised and target.archived_at is None and target.payload != job.payload:
        raise DedupConflict(f"dedup key {job.dedup_key!r} belongs to job {target.job_id}, whose payload is different")
    return Inserted(target.job_id, target.status, existing=target)


def _replace(tx: Tx, job: NewJob, target: JobRecord, now: Instant) -> Inserted | None:
    """Give the job that has the dedup key what this one brings; None if it has begun, and this one takes the key."""
    dedup.check_replaceable(job, target.job_id, target.job_type)
    transition = lifecycle.replace(target, job, now=now)
    if transition is None:
        return None
    move = decide(sqlite_places.standing(tx, target.job_id), transition, now)
    if not isinstance(move, Move):
        raise StoreError(f"job {target.job_id} cannot be replaced: {move.value}")
    sqlite_places.write(tx, move)
    release.after_moves(tx, [(transition, move)], now)
    [found] = read.get(tx.connection, [target.job_id])
    return Inserted(target.job_id, move.after.status, existing=found)


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
    gift = Gift(*tx.rows(release.DONATED, (donor.job_id,))[0])
    new = _stored(tx, job, now, Status.COMPLETED, completed_at=now)
    after = msgspec.structs.replace(new, reused_from=donor.ran, rows_of=gift.rows_of, rows_attempt=gift.rows_attempt)
    move = Move(new, after, (), gift.result, gift.result_artifact, gift.kept)
    sqlite_places.enter(tx, after.place, move.place_row())
    sqlite_places.write_events(tx, new.key, [submitted(now, job.created_by, Status.COMPLETED, Event.REUSE)])
    tx.connection.execute(sqlite_places.WRITE_DETAIL, move.detail_row())
    tx.tally(new.kind, Status.COMPLETED.value, 1)
    tx.count((job.job_type, job.queue, job.priority), Counted.COMPLETED, now)
    tx.count((job.job_type, job.queue, job.priority), Counted.REUSED, now, 1, donor.took_micros)
    tx.broods.add(job.parent_job_id, moved(None, Status.COMPLETED))
    # It waits for no other job. If it is retried manually, it runs by itself.
    _write_edges(tx, job.job_id, _needs(tx, job.depends_on, promised), None)
    tx.signals.add(Signal.ENDED)
    return Inserted(job.job_id, Status.COMPLETED, reused_from=donor.ran)


def _needs(tx: Tx, depends_on: Sequence[str], promised: bool) -> dict[str, Need]:
    """Return how each dependency of a job stands. One that retention has deleted since the job was promised had
    completed then."""
    needs = {}
    for parent in depends_on:
        found = tx.row(release.NEED, (parent,))
        if found is None and not promised:
            raise UnknownDependency(f"no job {parent} to depend on: submit it first; nothing was stored")
        status, seq = found or (Status.COMPLETED, None)
        needs[parent] = Need(Status(status), seq)
    return needs


def _has_room(tx: Tx, job: NewJob) -> bool:
    if job.concurrency_key is None or job.concurrency_limit is None:
        return True
    room = release.allowed(tx, job.concurrency_key, job.concurrency_limit) - release.running(tx, job.concurrency_key)
    if room <= 0:
        return False
    lane = (job.queue, job.job_type, job.payload_version)
    # Claimable jobs that come later do not block it: they are parked when it is claimed.
    place = (job.priority, job.scheduled_for, job.job_id)
    in_sight: int = tx.value(release.KEY_IN_SIGHT, (job.concurrency_key, *lane, *place, room))
    return in_sight < room


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

"""insert: plain jobs as one executemany; special ones one by one in the same transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.clock import Instant
from holdfast.errors import DedupConflict, UnknownDependency
from holdfast.lifecycle import TERMINAL, Counted, Event, Kind, Status
from holdfast.store.types import Inserted, NewJob, Signal
from holdfast.stores import history as histories
from holdfast.stores.sqlite import dedup, queueing, rating, reading, releasing
from holdfast.stores.sqlite.sql import load
from holdfast.stores.sqlite.tx import Tx
from holdfast.trees import TriggerRule, began, breaker, moved

INSERT = load("insert")
EXTRAS = load("insert_extras")
REUSED = load("insert_reused")
REUSABLE = load("reusable")
JOINABLE = load("joinable")
AWAITED = load("awaited")
ROOT = "SELECT coalesce(root_job_id, job_id) FROM job WHERE job_id = ?"
_ROW_FIELDS = 22  # the leading fields of NewJob that insert.sql binds, in order

_astuple = msgspec.structs.astuple


class Donor(NamedTuple):
    job_id: str
    ran: str  # which is another where this one was reused itself
    took_micros: int


def insert_plain(tx: Tx, jobs: Sequence[NewJob], now: Instant) -> list[Inserted]:
    """Jobs that are rows and nothing more."""
    queueing.refuse_over_limit(tx, jobs, now)
    bindings = []
    answers = []
    events: dict[tuple[Status, str | None], str] = {}
    kinds: dict[Kind, int] = {}
    for job in jobs:
        status = Status.SCHEDULED if job.scheduled_for > now else Status.PENDING
        key = (status, job.created_by)
        event = events.get(key)
        if event is None:
            event = events[key] = histories.submit_event(now, Event.SUBMIT, status, job.created_by)
            tx.signals.add(Signal.DUE if status is Status.SCHEDULED else Signal.READY)
        bindings.append((*_astuple(job)[:_ROW_FIELDS], status.value, now, event))
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
    """`admitted`: came with a parent that was, so that no queue is too full for them. `promised`: their parent has
    ended on the strength of them, and nothing can be refused any more."""
    if not any(job.special for job in jobs):
        return insert_plain(tx, jobs, now)
    answers = [
        _insert_special(tx, job, now, admitted, promised) if job.special else insert_plain(tx, [job], now)[0]
        for job in jobs
    ]
    if tx.broods:
        releasing.spread(tx, (), now)
    return answers


def _insert_special(tx: Tx, job: NewJob, now: Instant, admitted: bool, promised: bool) -> Inserted:
    existing = _by_own_id(tx, job) or _by_dedup_key(tx, job, now)
    if existing is not None:
        return existing
    job = _with_root(tx, job)
    rule = TriggerRule(job.trigger_rule)
    donor, leader = _identical(tx, job)
    if leader in job.depends_on or (job.depends_on and rule is not TriggerRule.ALL_SUCCESS):
        leader = None  # it waits for that one anyway, or may start before it: on its own terms
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
    if start.status is Status.PENDING and not admitted:
        queueing.refuse_over_limit(tx, [job], now)
    _write(tx, job, start.status, now, Event.SUBMIT)
    tx.broods.add(job.parent_job_id, moved(None, start.status))
    parked = start.status is Status.PENDING and not _has_room(tx, job)
    rate_parked = start.status is Status.PENDING and not parked and rating.has_to_wait(tx, job, now)
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
        releasing.end_as_it_comes(tx, job.job_id, start.then, reason, job.parent_job_id, kind, now)
    elif start.status is not Status.WAITING:
        tx.signals.add(Signal.DUE if start.status is Status.SCHEDULED else Signal.READY)
    return Inserted(job.job_id, start.then or start.status)


def _write(tx: Tx, job: NewJob, status: Status, now: Instant, event: Event) -> None:
    history = histories.submit_event(now, event, Status.COMPLETED if event is Event.REUSE else status, job.created_by)
    tx.execute(INSERT, (*_astuple(job)[:_ROW_FIELDS], status.value, now, history))
    kind = (job.job_type, job.queue, job.priority)
    tx.count(kind, Counted.SUBMITTED, now)
    if event is Event.REUSE:
        tx.count(kind, Counted.COMPLETED, now)


def _write_extras(tx: Tx, job: NewJob, **standing: int | str | None) -> None:
    """What a special job has beside its row: fields of its own, and the guard of its key."""
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
    tx.execute(EXTRAS, {"unmet": 0, "parked": 0, "rate_parked": 0, "joins": None, **extras, **standing})
    if job.dedup_key is not None:
        dedup.guard(tx, job.dedup_key, job.job_id, job.dedup_until)


def _write_edges(tx: Tx, job_id: str, standing: Mapping[str, Status], leader: str | None) -> None:
    tx.connection.executemany(
        "INSERT INTO edge (parent_id, child_id, met, joined) VALUES (?, ?, ?, ?)",
        [(parent, job_id, int(status in TERMINAL), int(parent == leader)) for parent, status in standing.items()],
    )
    if unmet := [parent for parent, status in standing.items() if status not in TERMINAL]:
        tx.execute(AWAITED, (msgspec.json.encode(unmet).decode(),))


def _with_root(tx: Tx, job: NewJob) -> NewJob:
    if job.parent_job_id is None:
        return job
    row = tx.row(ROOT, (job.parent_job_id,))
    if row is None:
        raise UnknownDependency(
            f"no job {job.parent_job_id} to be the parent, or it is archived: submit it first; nothing was stored"
        )
    return msgspec.structs.replace(job, root_job_id=row[0])


def _by_own_id(tx: Tx, job: NewJob) -> Inserted | None:
    if not job.own_id:
        return None
    record = reading.get(tx.connection, [job.job_id])[0]
    return None if record is None else Inserted(job.job_id, record.status, existing=record)


def _by_dedup_key(tx: Tx, job: NewJob, now: Instant) -> Inserted | None:
    target = None if job.dedup_key is None else dedup.living_target(tx, job.dedup_key, now)
    if target is None:
        return None
    # The archive keeps no payload: nothing can be said against a repeat then.
    if job.dedup_conflict_is_error and target.archived_at is None and target.payload != job.payload:
        raise DedupConflict(f"dedup key {job.dedup_key!r} belongs to job {target.job_id}, whose payload is another")
    return Inserted(target.job_id, target.status, existing=target)


def _identical(tx: Tx, job: NewJob) -> tuple[Donor | None, str | None]:
    """A finished job whose result serves; or one on its way that will."""
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
    tx.execute(REUSED, {"job_id": job.job_id, "donor": donor.job_id, "ran": donor.ran, "now": now})
    # It waits for nobody. But should someone retry it by hand, it runs, and then on its own terms.
    _write_edges(tx, job.job_id, _standing(tx, job.depends_on, promised), None)
    tx.signals.add(Signal.ENDED)
    return Inserted(job.job_id, Status.COMPLETED, reused_from=donor.ran)


def _standing(tx: Tx, depends_on: Sequence[str], promised: bool) -> dict[str, Status]:
    """How those stand that a job depends on. One that retention has taken since it was promised has long ended, and
    was no obstacle then."""
    standing = {}
    for parent in depends_on:
        found = tx.value(releasing.STATUS, (parent,))
        if found is None and not promised:
            raise UnknownDependency(f"no job {parent} to depend on: submit it first; nothing was stored")
        standing[parent] = Status(found or Status.COMPLETED)
    return standing


def _has_room(tx: Tx, job: NewJob) -> bool:
    if job.concurrency_key is None or job.concurrency_limit is None:
        return True
    room = job.concurrency_limit - releasing.running(tx, job.concurrency_key)
    if room <= 0:
        return False
    lane = (job.queue, job.job_type, job.payload_version)
    # The job itself is in sight already. Less urgent ones keep it from nothing: they are parked when it is claimed.
    in_sight: int = tx.value(releasing.KEY_IN_SIGHT, (job.concurrency_key, *lane, job.priority, room + 1))
    return in_sight <= room
